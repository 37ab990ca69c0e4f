#include "kernels/grid_kernels.h"

#include <cstring>

namespace rnnqc {

const GridKernels<double>& SelectGridKernels(const char* isa) {
  static const GridKernels<double> portable = GridKernelsPortable();
#if defined(RNNQC_BUILD_AVX512VNNI)
  static const GridKernels<double> avx512 = GridKernelsAvx512();
  if (std::strcmp(isa, "avx512vnni") == 0) return avx512;
#endif
#if defined(RNNQC_BUILD_AVX2)
  static const GridKernels<double> avx2 = GridKernelsAvx2();
  if (std::strcmp(isa, "avx2") == 0 || std::strcmp(isa, "avxvnni") == 0) return avx2;
#endif
  static_cast<void>(isa);
  return portable;
}

}  // namespace rnnqc
