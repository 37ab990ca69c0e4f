#include "kernels/grid_kernels.h"

namespace rnnqc {
namespace {

#include "kernels/grid_kernels.inc"

}  // namespace

template <typename Real>
GridKernels<Real> GridKernelsPortable() {
  return {Join<Real>, Step<Real>, Codes<Real>};
}

template GridKernels<double> GridKernelsPortable<double>();
template GridKernels<float> GridKernelsPortable<float>();

}  // namespace rnnqc
