#include "kernels/common/fused_cell.h"

#include <cmath>

namespace rnnqc {
namespace {

// Numbers up to here, sums of some of them too, are within int32.
constexpr float kLargestNumber = 0x1p30f;
// Indices that saturate at 2^15 - 1 belong to codes beyond the segments.
constexpr int32_t kLargestGateZero = 1 << 14;

// |entries| of a gate.
float Reach(const LinearTables& linear, int gate) {
  return std::fabs(linear.gate_offset[gate]) + linear.gate_scale[gate] * kLargestKnot;
}

bool HasFusedGates(const TableCellArgs& args) {
  if (!(args.v_max <= kLargestNumber) || args.linear->gate_zero > kLargestGateZero) return false;
  for (int g = 0; g < kGates; ++g) {
    if (!(args.gate_min[g] < 1.0f)) return false;
  }
  return true;
}

// States stay within 2^60: f * 2^60 + i * d is at most 2^60 for |f| <= 1 and |i * d| < 2^36, half a unit of the last
// place.
bool HasFusedState(const TableCellArgs& args) {
  const LinearTables& linear = *args.linear;
  return args.cell_max == 0x1p60f && Reach(linear, 2) <= 1.0f && Reach(linear, 0) * Reach(linear, 3) < 0x1p35f;
}

bool HasFusedCodes(const TableCellArgs& args) {
  const float y = Reach(*args.linear, 1) * (args.linear->cell_scale * kLargestKnot);
  return args.h_reciprocal.exact && y < kLargestNumber * args.h_scale;
}

}  // namespace

bool IsFusedCell(const TableCellArgs& args) {
  return args.linear != nullptr && args.linear->fused && HasFusedGates(args) && HasFusedState(args) &&
         HasFusedCodes(args);
}

}  // namespace rnnqc
