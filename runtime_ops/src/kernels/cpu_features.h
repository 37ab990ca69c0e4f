#ifndef RNNQC_KERNELS_CPU_FEATURES_H_
#define RNNQC_KERNELS_CPU_FEATURES_H_

#include <string>
#include <vector>

namespace rnnqc {

// Whether the processor and the operating system support the instruction set of that name: "portable" and
// "reference" always, "avx2", "avxvnni", "avx512vnni", "avx512vbmi" and "amxint8" on x86-64, "neon", "neondot" and
// "neoni8mm" on arm64.
//
// "amxint8" needs a permission of Linux, which is asked for the first time that this is called, unless the environment
// variable RNNQC_ISA names something else. A process that has it cannot set up signal stacks that are too small to hold
// tiles any more.
bool CpuSupports(const std::string& isa);

// The supported ones of the architecture-specific names above.
std::vector<std::string> CpuFeatureNames();

}  // namespace rnnqc

#endif  // RNNQC_KERNELS_CPU_FEATURES_H_
