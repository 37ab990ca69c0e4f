#ifndef RNNQC_CELLS_FIXED_POINT_BYTE_CELL_H_
#define RNNQC_CELLS_FIXED_POINT_BYTE_CELL_H_

#include "cells/lstm/lstm.h"
#include "kernels/common/fixed_point_bytes.h"

namespace rnnqc {

// A cell of the arithmetic "grid32" in the form of kernels/common/fixed_point_bytes.h. `bias` is 0: the cell's is added
// last.
struct PackedByteCell : PackedCell {
  AlignedArray<float> last_bias;
  GridBytes form;
};

PackedByteCell PackByteCell(const LstmConfig& config, const KernelTable& kernels, const CellParameters& parameters,
                            const GridBytes& form);

// The tables of `args` are not read.
void RunByteCell(const LstmConfig& config, const KernelTable& kernels, const PackedByteCell& packed,
                 const LstmArgs& args, Scratch* scratch, Parallel* parallel);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_FIXED_POINT_BYTE_CELL_H_
