#ifndef RNNQC_KERNELS_COMMON_FUSED_CELL_H_
#define RNNQC_KERNELS_COMMON_FUSED_CELL_H_

#include "kernels/kernel_table.h"

namespace rnnqc {

// Whether a cell with linear tables has these bits without most of its limits and without divisions:
//
//   k = max(trunc(v) - gate_zero, -2^15), with trunc(v) between -2^15 and 2^15 - 1      of a gate, v without limits
//   c = f * c + i * d, rounded to a whole number unless it is a float
//   k = min(c, cell_table_size / 2 - 1), at least -2^15                                 of a cell of whole numbers
//   k = rne(min(c * cell_index_scale, cell_table_size / 2 - 1)), at least -2^15         of a float one
//   entries                                                                             as LinearTables::fused has them
//   h = sat8(sat16(rne(fma(y, upper, y * lower))) + h_zero_point)                       of h_reciprocal
bool IsFusedCell(const TableCellArgs& args);

}  // namespace rnnqc

#endif  // RNNQC_KERNELS_COMMON_FUSED_CELL_H_
