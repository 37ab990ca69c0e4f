#ifndef RNNQC_KERNELS_COMMON_FIXED_POINT_FIXED_POINT_BYTES_H_
#define RNNQC_KERNELS_COMMON_FIXED_POINT_FIXED_POINT_BYTES_H_

#include <cstdint>

#include "kernels/common/packing.h"

namespace rnnqc {

constexpr int64_t kByteCodes = 256;

// Whole numbers that fit into int8.
struct ByteRange {
  int8_t low;
  int8_t high;
};

// A cell of the arithmetic "grid32" whose quantizers have up to 8 bits, as integers. rne() rounds half to even,
// sat(v, range) limits, a table is entered with the lower 8 bits of a number. For each unit:
//
//   v = (f32(acc) * h_multiplier + p) + bias                          binary32 operations
//   G = gate_codes[g][sat(rne(v * inverse + v * rest), gate[g])]      of the four gates
//   K = sat(rne(f32(G[f] * c) * kept_ratio), kept)                    G and the entries of cell_codes are codes:
//   A = sat(rne(f32(G[i] * G[c]) * added_ratio), added)               their products fit into int16
//   c = sat(K + A, cell)
//   m = sat(rne(f32(G[o] * cell_codes[c]) * hidden_ratio), hidden)
//   y = m * h_scale, h = m + h_zero_point
//
// With `input_forget` gate f enters its codes with gate i's number and ignores its own columns.
// v * inverse + v * rest is one fused multiply-add of the rounded product v * rest. Kernels may take v / scale instead:
// the numbers are the same. No argument of rne() reaches 2^31 in magnitude.
struct GridBytes {
  bool input_forget;
  float scale[kGates];
  float inverse[kGates];
  float rest[kGates];
  ByteRange gate[kGates];
  // Codes of the gates i, o and f are uint8, those of gate c and the cell int8.
  alignas(kAlignment) uint8_t gate_codes[kGates][kByteCodes];
  alignas(kAlignment) uint8_t cell_codes[kByteCodes];
  float kept_ratio;
  float added_ratio;
  float hidden_ratio;
  ByteRange kept;
  ByteRange added;
  ByteRange cell;
  ByteRange hidden;
  float h_scale;
  uint8_t h_zero_point;
};

// A step of some rows. Works on blocks [block_begin, block_end).
struct GridBytesArgs {
  int64_t rows;
  int64_t units;
  int64_t block_begin;
  int64_t block_end;
  const int32_t* acc;  // block order
  int64_t acc_stride;
  const float* p;  // block order
  int64_t p_stride;
  const float* h_multiplier;  // block order
  const float* bias;          // block order
  const GridBytes* form;
  int8_t* c;  // in and out; rows of 16 * blocks
  int64_t c_stride;
  float* const* y;  // `rows` pointers to `units` floats
  uint8_t* h;       // rows of 16 * blocks
  int64_t h_stride;
};

using GridBytesFn = void(const GridBytesArgs& args);

}  // namespace rnnqc

#endif  // RNNQC_KERNELS_COMMON_FIXED_POINT_FIXED_POINT_BYTES_H_
