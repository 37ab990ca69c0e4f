#ifndef RNNQC_CELLS_FIXED_POINT_PRODUCT_H_
#define RNNQC_CELLS_FIXED_POINT_PRODUCT_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cells/driver/cell_run.h"
#include "kernels/common/packing.h"
#include "kernels/kernel_table.h"

namespace rnnqc {

// One side of a matrix product. A 16-bit weight is 256 * high + low + 128 with int8 high and low.
struct GridProduct {
  std::vector<PackedMatrix> planes;  // the weights, or high and low
  AlignedArray<double> start;        // planar; empty if the packed start values are all there is
  AlignedArray<double> zero_point;   // planar; empty with `start`, or if all are 0
  std::vector<int32_t> no_start;     // block order, zeros; used exactly if `start` is
  int64_t code_zero_point = 0;
  int64_t gates = 0;
};

// Throws std::invalid_argument, naming the input, for a zero point that is no code of its matrix.
void CheckZeroPoints(const char* name, const WeightMatrix& matrix);

GridProduct PackGridProduct(const KernelTable& kernels, const WeightMatrix& matrix, int64_t code_zero_point,
                            bool wide_codes);

// `gates` times `units` values in planar order: each gate's padded with zeros to whole blocks.
template <typename Value, typename Source>
AlignedArray<Value> PlanarArray(const Source* values, int64_t gates, int64_t units) {
  const int64_t padded = BlockCount(units) * kBlockUnits;
  AlignedArray<Value> planar(gates * padded);
  std::fill(planar.data(), planar.data() + planar.size(), Value(0));
  for (int64_t gate = 0; gate < gates; ++gate) {
    for (int64_t unit = 0; unit < units; ++unit) {
      planar.data()[gate * padded + unit] = static_cast<Value>(values[gate * units + unit]);
    }
  }
  return planar;
}

}  // namespace rnnqc

#endif  // RNNQC_CELLS_FIXED_POINT_PRODUCT_H_
