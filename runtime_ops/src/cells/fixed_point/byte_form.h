#ifndef RNNQC_CELLS_FIXED_POINT_BYTE_FORM_H_
#define RNNQC_CELLS_FIXED_POINT_BYTE_FORM_H_

#include "cells/driver/cell_run.h"
#include "cells/lstm/config.h"
#include "kernels/common/fixed_point/fixed_point_bytes.h"
#include "kernels/kernel_table.h"

namespace rnnqc {

// Whether the cell gives the same bits in the form of kernels/common/fixed_point/fixed_point_bytes.h, which is then
// written to `form`. Every quantizer and product of codes is compared for every value that changes its result.
bool FindGridBytes(const LstmConfig& config, const KernelTable& kernels, const CellParameters& parameters,
                   const float* gate_table, const float* cell_table, GridBytes* form);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_FIXED_POINT_BYTE_FORM_H_
