#ifndef RNNQC_KERNELS_COMMON_ROUNDING_H_
#define RNNQC_KERNELS_COMMON_ROUNDING_H_

#include <cstdint>
#include <cstring>

namespace rnnqc {

// Only for code that is compiled for the baseline of the architecture: the linker may use the machine code of an inline
// function from one translation unit in another.

// v limited to lo .. hi. The forms `v < hi ? v : hi` and `v > lo ? v : lo` send NaN to a limit, so that no NaN becomes
// an index.
inline float Limit(float v, float lo, float hi) {
  const float upper = v < hi ? v : hi;
  return upper > lo ? upper : lo;
}

#include "kernels/common/rounding.inc"

// The code of x less the zero point; lo .. hi are those of all codes.
inline int32_t CodeOffset(float x, float scale, float lo, float hi) {
  return static_cast<int32_t>(RoundEven(Limit(x / scale, lo, hi)));
}

}  // namespace rnnqc

#endif  // RNNQC_KERNELS_COMMON_ROUNDING_H_
