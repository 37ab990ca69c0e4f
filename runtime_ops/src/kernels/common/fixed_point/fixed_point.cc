#include "kernels/common/fixed_point/fixed_point.h"

#include <cstring>

namespace rnnqc {

template <typename Real>
const GridKernels<Real>& SelectGridKernels(const char* isa) {
  static const GridKernels<Real> portable = GridKernelsPortable<Real>();
#if defined(RNNQC_BUILD_AVX512VNNI)
  static const GridKernels<Real> avx512 = GridKernelsAvx512<Real>();
  for (const char* extended : {"avx512vnni", "avx512vbmi", "amxint8"}) {
    if (std::strcmp(isa, extended) == 0) return avx512;
  }
#endif
#if defined(RNNQC_BUILD_AVX2)
  static const GridKernels<Real> avx2 = GridKernelsAvx2<Real>();
  if (std::strcmp(isa, "avx2") == 0 || std::strcmp(isa, "avxvnni") == 0) return avx2;
#endif
  static_cast<void>(isa);
  return portable;
}

template const GridKernels<double>& SelectGridKernels<double>(const char*);
template const GridKernels<float>& SelectGridKernels<float>(const char*);

}  // namespace rnnqc
