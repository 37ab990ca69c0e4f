#ifndef RNNQC_KERNELS_COMMON_FINISH_PROJECTION_H_
#define RNNQC_KERNELS_COMMON_FINISH_PROJECTION_H_

#include <cstdint>

#include "kernels/kernel_table.h"

namespace rnnqc {

// p of rows [row, row + rows) and one block from their sums without start values, rows of kBlockColumns. For
// instruction sets that extend AVX512-VNNI.
void s32_f32_finish_projection__avx512vnni(const ProjectArgs& args, int64_t row, int64_t rows, int64_t block,
                                           const int32_t* sums);

}  // namespace rnnqc

#endif  // RNNQC_KERNELS_COMMON_FINISH_PROJECTION_H_
