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

Division Divide(const CellConfig& config, const KernelTable& kernels, const PackedCell& packed, int64_t hidden_bytes,
                int64_t hidden_columns, const CellArgs& args, int64_t members) {
  static const int64_t processors = std::max<int64_t>(1, std::thread::hardware_concurrency());
  const double r_bytes = static_cast<double>(hidden_bytes);
  const auto planes = [](int64_t bits) { return bits == 16 ? 2 : 1; };
  const double w_bytes = static_cast<double>(packed.w.bytes());
  const double batch = static_cast<double>(args.batch);
  const double columns = static_cast<double>(hidden_columns);
  const double products = batch * columns / kProductsPerNanosecond;  // of one k
  // Nanoseconds of one step: a product either streams its weights or is bound by its multiplications.
  const double recurrent =
      std::max(r_bytes / kBytesPerNanosecond, static_cast<double>(packed.r.k * planes(config.h_bits)) * products);
  const double projection = std::max(w_bytes / kBytesPerNanosecond / static_cast<double>(args.time),
                                     static_cast<double>(packed.w.k * planes(config.x_bits)) * products);
  Division division;
  if (processors == 1 || (recurrent + projection) * static_cast<double>(args.time) < kSharedCall) return division;
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
