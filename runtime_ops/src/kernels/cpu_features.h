#ifndef RNNQC_KERNELS_CPU_FEATURES_H_
#define RNNQC_KERNELS_CPU_FEATURES_H_

#include <string>
#include <vector>

namespace rnnqc {

// Whether the processor and the operating system support the instruction set of that name: "portable" and
// "reference" always, "avx2", "avxvnni", "avx512vnni" and "avx512vbmi" on x86-64, "neondot" on arm64.
bool CpuSupports(const std::string& isa);

// The supported ones of the architecture-specific names above.
std::vector<std::string> CpuFeatureNames();

}  // namespace rnnqc

#endif  // RNNQC_KERNELS_CPU_FEATURES_H_
