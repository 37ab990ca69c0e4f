#ifndef RNNQC_KERNELS_COMMON_LINEAR_TABLES_H_
#define RNNQC_KERNELS_COMMON_LINEAR_TABLES_H_

#include <cstdint>

#include "kernels/common/packing.h"

namespace rnnqc {

constexpr int64_t kSegments = 64;
constexpr int32_t kLargestKnot = 1 << 14;
constexpr float kFusedZero = 0x1p23f + kLargestKnot;

// The tables of a cell in the form that fits into vector registers. They are all made of one odd, continuous,
// piecewise-linear function of 64 segments with integer knots K, |K| <= kLargestKnot. For a code k, in int16
// arithmetic:
//
//   u = min(|k|, 64 * L - 1), j = u / L, v = u - j * L                      L = 2^shift codes in a segment
//   T = sign(k) * (K[j] + floor(((K[j + 1] - K[j]) * v + L / 2) / L))
//   entry of code k = f32(T) * scale + offset                               offset 0 for the cell
//
// with the bits of the tables they stand for. A gate's entry k + gate_zero belongs to code k.
//
// The same in fewer operations, if `fused`, in uint16 arithmetic:
//
//   n = floor((fused_knots[j] + floor(fused_rises[j] * v / L) + 1) / 2)     2^14 + |T|
//   m = kFusedZero + T, the float whose lower half is n or, if k < 0, 2^15 - n
//   entry of code k = fma(m, scale, start)
struct LinearTables {
  alignas(kAlignment) int16_t knots[kSegments];     // K[j]
  alignas(kAlignment) int16_t rises[kSegments];     // K[j + 1] - K[j]
  alignas(kAlignment) uint8_t bytes[4][kSegments];  // lower and upper bytes of the knots, then of the rises
  int32_t gate_zero;                                // at most 2^15
  int32_t gate_shift;                               // 0 .. 9
  float gate_scale[kGates];
  float gate_offset[kGates];
  int32_t cell_shift;
  float cell_scale;
  bool fused;
  alignas(kAlignment) uint16_t fused_knots[kSegments];
  alignas(kAlignment) uint16_t fused_rises[kSegments];
  float gate_start[kGates];
  float cell_start;
};

struct TableExtent {
  int64_t gates;
  const float* gate_table[kGates];  // valid at 0 .. trunc(gate_max); null if the gate has no table
  float gate_max[kGates];
  const float* cell_table;  // code k stands at k, or at k + cell_table_size if k < 0; null if there is none
  int64_t cell_table_size;
};

// Whether there are tables of gates, and every entry of the tables has a linear form, which is then written to
// `linear`.
bool FindLinearTables(const TableExtent& tables, LinearTables* linear);

}  // namespace rnnqc

#endif  // RNNQC_KERNELS_COMMON_LINEAR_TABLES_H_
