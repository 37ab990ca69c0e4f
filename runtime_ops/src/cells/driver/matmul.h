#ifndef RNNQC_CELLS_DRIVER_MATMUL_H_
#define RNNQC_CELLS_DRIVER_MATMUL_H_

#include <cstdint>

#include "kernels/kernel_table.h"

namespace rnnqc {

inline MatmulArgs Matmul(const PackedMatrix& matrix, const uint8_t* a, int64_t a_stride, int64_t rows,
                         int64_t block_begin, int64_t block_end) {
  return {a,
          a_stride,
          rows,
          matrix.weights.data(),
          matrix.k_padded,
          matrix.multipliers.size() == 0 ? nullptr : matrix.multipliers.data(),
          matrix.group_size,
          matrix.start.data(),
          block_begin,
          block_end,
          matrix.columns,
          false};
}

inline void MultiplyRows(const KernelTable& kernels, const PackedMatrix& matrix, const RecurrentArgs& args) {
  RecurrentOf(kernels, matrix.format)(args);
}

inline void ProjectRows(const KernelTable& kernels, const PackedMatrix& matrix, const ProjectArgs& args) {
  ProjectOf(kernels, matrix.format)(args);
}

}  // namespace rnnqc

#endif  // RNNQC_CELLS_DRIVER_MATMUL_H_
