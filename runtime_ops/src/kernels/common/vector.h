#ifndef RNNQC_KERNELS_COMMON_VECTOR_H_
#define RNNQC_KERNELS_COMMON_VECTOR_H_

#include <cstdint>

namespace rnnqc {

// Operations on rows of numbers, as onnxruntime computes the operators of these names: each is one IEEE operation for
// each number, or exact. f32 and f64 are binary32 and binary64.
enum class VectorOp : uint8_t {
  kAddF32,  // y = a + b
  kSubF32,
  kMulF32,
  kDivF32,
  kAddF64,
  kSubF64,
  kMulF64,
  kDivF64,
  kAddI32,
  kSubI32,
  kMulI32,
  kMaxI32,
  kMinI32,
  kNegF32,  // y = -a
  kAbsF32,
  kFloorF32,
  kCeilF32,
  kRoundF32,    // half to even
  kClipF32,     // min(max(a, b), c); b and c are one number each
  kLargestF32,  // one number: the largest of a row
  kLessF32,     // bytes: a < b
  kSelectF32,   // a ? b : c, where a zero of b becomes positive; a is bytes that are 0 or 1
  kF32ToI32,    // toward zero; beyond int32 and for NaN -2^31
  kF32ToU8,     // the lowest byte of that
  kF32ToF64,
  kF64ToF32,
  kI32ToF32,
  kI32ToF64,
  kI32ToU8,  // the lowest byte
  kU8ToF32,
  kU8ToI32,
};

struct VectorOperand {
  const void* data;
  int64_t stride;  // from row to row, in numbers; 0 if all rows have one
  bool one;        // whether a row is one number
};

struct VectorArgs {
  VectorOp op;
  int64_t rows;
  int64_t n;  // numbers of a row of y; of a for kLargestF32
  VectorOperand a;
  VectorOperand b;  // of operations of two operands, and of three
  VectorOperand c;
  void* y;
  int64_t y_stride;
};

// y may be an operand, but no part of one.
using VectorFn = void(const VectorArgs& args);

}  // namespace rnnqc

#endif  // RNNQC_KERNELS_COMMON_VECTOR_H_
