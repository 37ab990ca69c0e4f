#ifndef RNNQC_CELLS_DRIVER_ROW_FORMAT_H_
#define RNNQC_CELLS_DRIVER_ROW_FORMAT_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/kernel_table.h"

namespace rnnqc {

// Magnitudes of rows that choose their own scale are limited to these.
constexpr float kSmallestMagnitude = 0x1p-100f;
constexpr float kLargestMagnitude = 0x1p60f;

// The function body takes the rows' zero points into its integer product as further columns, so it ends before
// kMaxDepth.
constexpr int64_t kMaxDynamicInputSize = 65024;

// Fewer input values than this are quantized by one thread.
constexpr int64_t kSharedQuantization = 16 * 1024;

// What turns int8 rows into unsigned codes.
constexpr int32_t kRowZeroPoint = 128;

// Scale and zero point of the unsigned quantized values of a row.
struct RowFormat {
  float scale;
  int32_t zero_point;
};

// The format with `bits` bits that covers 0 and the range of a row.
inline RowFormat DynamicRowFormat(const MinMax& range, int64_t bits) {
  const float largest = bits == 16 ? 65535.0f : 255.0f;
  const float a = std::max(range.min, -kLargestMagnitude);
  const float b = std::min(range.max, kLargestMagnitude);
  const float scale = std::max(b - a, kSmallestMagnitude) / largest;
  // To the nearest even number, as a single instruction.
  const long zero_point = std::lrint((0.0f - a) / scale);
  return {scale, std::min(static_cast<int32_t>(zero_point), bits == 16 ? 65535 : 255)};
}

}  // namespace rnnqc

#endif  // RNNQC_CELLS_DRIVER_ROW_FORMAT_H_
