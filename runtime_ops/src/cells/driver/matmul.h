#ifndef RNNQC_CELLS_DRIVER_MATMUL_H_
#define RNNQC_CELLS_DRIVER_MATMUL_H_

#include <cstdint>

#include "kernels/kernel_table.h"

namespace rnnqc {

// Inline: a step of a small cell takes less time than some calls that cannot be foreseen.

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
          false};
}

inline void MultiplyRows(const KernelTable& kernels, const PackedMatrix& matrix, const RecurrentArgs& args) {
  const int64_t bits = BitsOf(matrix.format);
  (matrix.format == PackedFormat::kS4Sets ? kernels.recurrent_sets
   : bits == 4                            ? kernels.recurrent_s4
   : bits == 6                            ? kernels.recurrent_s6
                                          : kernels.recurrent)(args);
}

inline void ProjectRows(const KernelTable& kernels, const PackedMatrix& matrix, const ProjectArgs& args) {
  const int64_t bits = BitsOf(matrix.format);
  (matrix.format == PackedFormat::kS4Sets ? kernels.project_sets
   : bits == 4                            ? kernels.project_s4
   : bits == 6                            ? kernels.project_s6
                                          : kernels.project)(args);
}

}  // namespace rnnqc

#endif  // RNNQC_CELLS_DRIVER_MATMUL_H_
