#ifndef RNNQC_CELLS_FIXED_POINT_BYTE_CELL_H_
#define RNNQC_CELLS_FIXED_POINT_BYTE_CELL_H_

#include <memory>

#include "cells/driver/cell_run.h"
#include "cells/driver/layer.h"
#include "cells/lstm/config.h"
#include "kernels/common/fixed_point/fixed_point_bytes.h"

namespace rnnqc {

// A cell of the arithmetic "grid32" in the form of kernels/common/fixed_point/fixed_point_bytes.h; its calls read no
// tables.
std::unique_ptr<Layer> ByteLayer(const LstmConfig& config, const KernelTable& kernels, const CellParameters& parameters,
                                 const GridBytes& form);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_FIXED_POINT_BYTE_CELL_H_
