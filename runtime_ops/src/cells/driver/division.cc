#include "cells/driver/division.h"

#include <algorithm>
#include <thread>

#include "cells/driver/team.h"

namespace rnnqc {
namespace {

// Estimates to decide how many threads a call is worth, of a core with 8-bit dot products.
constexpr double kBytesPerNanosecond = 100;
constexpr double kProductsPerNanosecond = 300;
// A call pays more than it gains if it is shorter than this (nanoseconds), and so does a step that ends in a barrier.
constexpr double kSharedCall = 6000;
constexpr double kSharedStep = 800;
constexpr double kPartOfAStep = 250;
// Threads take rows of their own, without barriers, if each has as many as it multiplies at once and the weights fit
// into its cache.
constexpr double kPrivateWeights = 768 * 1024;

}  // namespace

int64_t Processors() {
  static const int64_t processors = std::max<int64_t>(1, std::thread::hardware_concurrency());
  return processors;
}

double ProductTime(double weight_bytes, int64_t k, int64_t columns, int64_t rows) {
  const double products = static_cast<double>(k) * static_cast<double>(columns) * static_cast<double>(rows);
  return std::max(weight_bytes / kBytesPerNanosecond, products / kProductsPerNanosecond);
}

bool IsWorthThreads(double nanoseconds) { return Processors() > 1 && nanoseconds >= kSharedCall; }

Division Divide(const CellConfig& config, const KernelTable& kernels, const PackedCell& packed, int64_t hidden_bytes,
                int64_t hidden_columns, const CellArgs& args, int64_t members) {
  const int64_t processors = Processors();
  const double r_bytes = static_cast<double>(hidden_bytes);
  const auto planes = [](int64_t bits) { return bits == 16 ? 2 : 1; };
  const double w_bytes = static_cast<double>(packed.w.bytes());
  // Nanoseconds of one step.
  const double recurrent = ProductTime(r_bytes, packed.r.k * planes(config.h_bits), hidden_columns, args.batch);
  const double projection = ProductTime(w_bytes / static_cast<double>(args.time), packed.w.k * planes(config.x_bits),
                                        hidden_columns, args.batch);
  Division division;
  if (!IsWorthThreads((recurrent + projection) * static_cast<double>(args.time))) return division;
  const int64_t threads = std::min(members, processors);
  if (threads > 1 && args.batch >= kernels.rows_at_once * threads && r_bytes <= kPrivateWeights) {
    division.groups = threads;
  } else if (args.time == 1 || recurrent >= kSharedStep) {
    const double most = (args.time == 1 ? recurrent + projection : recurrent) / kPartOfAStep;
    division.parts = std::min({processors, Team::kMaxMembers, std::max<int64_t>(1, static_cast<int64_t>(most))});
  }
  return division;
}

}  // namespace rnnqc
