#include "kernels/grid_kernels.h"

namespace rnnqc {
namespace {

#include "kernels/grid_kernels.inc"

}  // namespace

GridKernels<double> GridKernelsPortable() { return {Join<double>, Step<double>, Codes<double>}; }

}  // namespace rnnqc
