#ifndef RNNQC_KERNELS_COMMON_RECIPROCAL_H_
#define RNNQC_KERNELS_COMMON_RECIPROCAL_H_

namespace rnnqc {

constexpr float kLargestByteCode = 255.0f;

// 1 / scale as the sum of two floats. If `exact`, then for every finite x
//
//   rne(fma(x, upper, x * lower)) = rne(x / scale)      up to +-kLargestByteCode; what exceeds it does so in both forms
struct Reciprocal {
  float upper;
  float lower;
  bool exact;
};

Reciprocal FindReciprocal(float scale);

}  // namespace rnnqc

#endif  // RNNQC_KERNELS_COMMON_RECIPROCAL_H_
