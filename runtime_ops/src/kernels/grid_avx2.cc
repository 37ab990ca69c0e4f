#include "kernels/grid_kernels.h"

namespace rnnqc {
namespace {

#include "kernels/grid_kernels.inc"

}  // namespace

GridKernels<double> GridKernelsAvx2() { return {Join<double>, Step<double>, Codes<double>}; }

}  // namespace rnnqc
