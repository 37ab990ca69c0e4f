#include "threads/cost.h"

#include <algorithm>
#include <thread>

namespace rnnqc {
namespace {

// Estimates of a core with 8-bit dot products.
constexpr double kBytesPerNanosecond = 100;
constexpr double kProductsPerNanosecond = 300;
// A call pays more than it gains if it is shorter than this (nanoseconds).
constexpr double kSharedCall = 6000;

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

}  // namespace rnnqc
