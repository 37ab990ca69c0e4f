#include "kernels/grid_kernels.h"

namespace rnnqc {
namespace {

#include "kernels/grid_kernels.inc"

}  // namespace

template <typename Real>
GridKernels<Real> GridKernelsAvx2() {
  return {Join<Real>, Step<Real>, Codes<Real>};
}

template GridKernels<double> GridKernelsAvx2<double>();
template GridKernels<float> GridKernelsAvx2<float>();

}  // namespace rnnqc
