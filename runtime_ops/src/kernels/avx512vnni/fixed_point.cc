#include "kernels/common/fixed_point/fixed_point.h"

#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

#include "kernels/common/fixed_point/fixed_point.inc"
// After it, whose functions they call.
#include "kernels/common/fixed_point/fixed_point_bytes.inc"
#include "kernels/common/fixed_point/fixed_point_gru_rnn.inc"

}  // namespace

template <typename Real>
GridKernels<Real> GridKernelsAvx512() {
  return {Join<Real>, Codes<Real>, LstmStep<Real>, GruGates, GruOutput, RnnStep};
}

template GridKernels<double> GridKernelsAvx512<double>();
template GridKernels<float> GridKernelsAvx512<float>();

void s32_grid_bytes_16__avx512vnni(const GridBytesArgs& args) { ByteBlocks(args); }

}  // namespace rnnqc
