// Codes of rows: four values to a register.

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

#include "kernels/neon/linear.inc"

// Values x[i] .. x[i + 3], zeros from n on, NaN as zero.
inline float32x4_t LoadFirst(const float* x, int64_t i, int64_t n) {
  float four[4] = {};
  if (i + 4 > n) std::memcpy(four, x + i, static_cast<size_t>(n - i) * sizeof(float));
  const float32x4_t value = vld1q_f32(i + 4 > n ? four : x + i);
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(value), vceqq_f32(value, value)));
}

}  // namespace

float f32_max_abs__neon(const float* x, int64_t n) {
  float32x4_t largest = vdupq_n_f32(0.0f);
  for (int64_t i = 0; i < n; i += 4) largest = vmaxq_f32(largest, vabsq_f32(LoadFirst(x, i, n)));
  return vmaxvq_f32(largest);
}

MinMax f32_min_max__neon(const float* x, int64_t n) {
  float32x4_t least = vdupq_n_f32(0.0f);
  float32x4_t largest = vdupq_n_f32(0.0f);
  for (int64_t i = 0; i < n; i += 4) {
    const float32x4_t value = LoadFirst(x, i, n);
    least = vminq_f32(least, value);
    largest = vmaxq_f32(largest, value);
  }
  // The minimum of 0 and -0 is -0, to which the addition gives a positive sign.
  return {vminvq_f32(least) + 0.0f, vmaxvq_f32(largest)};
}

void f32_u8_quantize_row__neon(const float* x, int64_t n, float scale, int32_t zero_point, uint8_t* codes) {
  const Grid grid(scale, zero_point);
  for (int64_t i = 0; i < n; i += 16) {
    float rest[16] = {};
    const int64_t left = n - i;
    if (left < 16) std::memcpy(rest, x + i, static_cast<size_t>(left) * sizeof(float));
    const float* from = left < 16 ? rest : x + i;
    const float32x4_t values[4] = {vld1q_f32(from), vld1q_f32(from + 4), vld1q_f32(from + 8), vld1q_f32(from + 12)};
    uint8_t sixteen[16];
    vst1q_u8(left < 16 ? sixteen : codes + i, grid(values));
    if (left < 16) std::memcpy(codes + i, sixteen, static_cast<size_t>(left));
  }
}

}  // namespace rnnqc
