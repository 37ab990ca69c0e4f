// Plain C++ that compilers vectorise for the baseline of the architecture.

#include <cstdint>
#include <cstring>

#include "kernels/common/rounding.h"
#include "kernels/kernel_table.h"

namespace rnnqc {

float f32_max_abs__portable(const float* x, int64_t n) {
  // Magnitudes compare like their bit patterns; those above infinity are NaN.
  int32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    int32_t bits;
    std::memcpy(&bits, x + i, sizeof(bits));
    bits &= 0x7fffffff;
    bits = bits > 0x7f800000 ? 0 : bits;
    largest = bits > largest ? bits : largest;
  }
  float result;
  std::memcpy(&result, &largest, sizeof(result));
  return result;
}

MinMax f32_min_max__portable(const float* x, int64_t n) {
  // Positive numbers compare like their bit patterns, negative ones have a negative pattern; NaN as above.
  int32_t below = 0;
  int32_t above = 0;
  for (int64_t i = 0; i < n; ++i) {
    int32_t bits;
    std::memcpy(&bits, x + i, sizeof(bits));
    int32_t magnitude = bits & 0x7fffffff;
    magnitude = magnitude > 0x7f800000 ? 0 : magnitude;
    const int32_t negative = bits < 0 ? magnitude : 0;
    const int32_t positive = bits < 0 ? 0 : magnitude;
    below = negative > below ? negative : below;
    above = positive > above ? positive : above;
  }
  MinMax range;
  std::memcpy(&range.min, &below, sizeof(below));
  std::memcpy(&range.max, &above, sizeof(above));
  range.min = 0.0f - range.min;
  return range;
}

void f32_u8_quantize_row__portable(const float* x, int64_t n, float scale, int32_t zero_point, uint8_t* codes) {
  const float lo = static_cast<float>(-zero_point);
  const float hi = static_cast<float>(255 - zero_point);
  for (int64_t i = 0; i < n; ++i) {
    const float value = x[i] == x[i] ? x[i] : 0.0f;
    codes[i] = static_cast<uint8_t>(CodeOffset(value, scale, lo, hi) + zero_point);
  }
}

void f32_u16_quantize_row__portable(const float* x, int64_t n, float scale, int32_t zero_point, uint8_t* high,
                                    uint8_t* low) {
  const float lo = static_cast<float>(-zero_point);
  const float hi = static_cast<float>(65535 - zero_point);
  for (int64_t i = 0; i < n; ++i) {
    const float value = x[i] == x[i] ? x[i] : 0.0f;
    const int32_t code = CodeOffset(value, scale, lo, hi) + zero_point;
    high[i] = static_cast<uint8_t>(code >> 8);
    low[i] = static_cast<uint8_t>(code & 255);
  }
}

void s32_f32_join__portable(const JoinArgs& args) {
  const int64_t begin = args.block_begin * kBlockColumns;
  const int64_t columns = (args.block_end - args.block_begin) * kBlockColumns;
  const int32_t* start = args.start + begin;
  const float* multiplier = args.multiplier + begin;
  for (int64_t row = 0; row < args.rows; ++row) {
    const int32_t* high = args.acc + 2 * row * args.acc_stride + begin;
    const int32_t* low = high + args.acc_stride;
    const int32_t z_high = args.zero_point[2 * row];
    const int32_t z_low = args.zero_point[2 * row + 1];
    const float* bias = args.bias + row * args.bias_stride + begin;
    float* p = args.p + row * args.p_stride + begin;
    for (int64_t j = 0; j < columns; ++j) {
      const float upper = static_cast<float>(high[j] + z_high * start[j]) * 256.0f;
      float value = upper + static_cast<float>(low[j] + z_low * start[j]);
      if (args.row_scale != nullptr) value = value * args.row_scale[row];
      value = value * multiplier[j];
      p[j] = value + bias[j];
    }
  }
}

}  // namespace rnnqc
