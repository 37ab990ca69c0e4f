#ifndef RNNQC_CELLS_GRID_CELL_H_
#define RNNQC_CELLS_GRID_CELL_H_

#include <cstdint>
#include <vector>

#include "cells/lstm_cell.h"
#include "cells/lstm_config.h"
#include "cells/scratch.h"
#include "kernels/grid_kernels.h"
#include "kernels/kernel_table.h"

namespace rnnqc {

// Codes of a matrix W [k, 4H], one of the two pointers, and the zero points [4H] of its columns, or null.
struct GridMatrix {
  const int8_t* narrow;
  const int16_t* wide;
  const int32_t* zero_point;
  int64_t k;
};

// As the operator gives them: vectors [4H], peephole [3H] or null.
struct GridParameters {
  GridMatrix w;
  GridMatrix r;
  const float* x_multiplier;
  const float* h_multiplier;
  const float* bias;
  const float* peephole;
};

// One side of a matrix product. A 16-bit weight is 256 * high + low + 128 with int8 high and low.
struct GridProduct {
  std::vector<PackedMatrix> planes;  // the weights, or high and low
  AlignedArray<double> start;        // planar; empty if the packed start values are all there is
  AlignedArray<double> zero_point;   // planar; empty with `start`, or if all are 0
  std::vector<int32_t> no_start;     // block order, zeros; used exactly if `start` is
  int64_t code_zero_point = 0;
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
             Scratch* scratch);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_GRID_CELL_H_
