#ifndef RNNQC_CELLS_DRIVER_DIVISION_H_
#define RNNQC_CELLS_DRIVER_DIVISION_H_

#include <cstdint>

#include "cells/driver/cell_run.h"

namespace rnnqc {

// `hidden_bytes` and `hidden_columns` are those of all recurrent matrices; `members` threads took part in the last
// call.
Division Divide(const CellConfig& config, const KernelTable& kernels, const PackedCell& packed, int64_t hidden_bytes,
                int64_t hidden_columns, const CellArgs& args, int64_t members);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_DRIVER_DIVISION_H_
