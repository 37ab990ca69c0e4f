#include "kernels/grid_kernels.h"

namespace rnnqc {
namespace {

#include "kernels/grid_kernels.inc"

}  // namespace

template <typename Real>
GridKernels<Real> GridKernelsAvx512() {
  return {Join<Real>, Step<Real>, Codes<Real>};
}

template GridKernels<double> GridKernelsAvx512<double>();
template GridKernels<float> GridKernelsAvx512<float>();

}  // namespace rnnqc
