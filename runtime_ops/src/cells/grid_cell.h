#ifndef RNNQC_CELLS_GRID_CELL_H_
#define RNNQC_CELLS_GRID_CELL_H_

#include <cstdint>

#include "cells/grid_product.h"
#include "cells/lstm_cell.h"
#include "cells/lstm_config.h"
#include "cells/scratch.h"
#include "kernels/grid_kernels.h"
#include "kernels/kernel_table.h"

namespace rnnqc {

// As the operator gives them: vectors [4H], peephole [3H] or null.
struct GridParameters {
  GridMatrix w;
  GridMatrix r;
  const float* x_multiplier;
  const float* h_multiplier;
  const float* bias;
  const float* peephole;
};

template <typename Real>
struct PackedGrid {
  GridProduct w;
  GridProduct r;
  AlignedArray<Real> x_multiplier;  // planar, and so on
  AlignedArray<Real> h_multiplier;
  AlignedArray<Real> bias;
  AlignedArray<Real> peephole;  // empty without peepholes
};

// Throws std::invalid_argument for a zero point that is no code of its matrix.
template <typename Real>
PackedGrid<Real> PackGrid(const LstmConfig& config, const KernelTable& kernels, const GridParameters& parameters);

template <typename Real>
void RunGrid(const LstmConfig& config, const KernelTable& kernels, const PackedGrid<Real>& packed, const LstmArgs& args,
             Scratch* scratch, Parallel* parallel);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_GRID_CELL_H_
