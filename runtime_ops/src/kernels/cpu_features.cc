#include "kernels/cpu_features.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__) || defined(_M_X64)
#define RNNQC_X86_64 1
#if defined(_MSC_VER)
#include <immintrin.h>
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) || defined(_M_ARM64)
#define RNNQC_ARM64 1
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#endif

namespace rnnqc {
namespace {

#if defined(RNNQC_X86_64)

struct Registers {
  uint32_t eax, ebx, ecx, edx;
};

Registers Cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers r{};
#if defined(_MSC_VER)
  int values[4];
  __cpuidex(values, static_cast<int>(leaf), static_cast<int>(subleaf));
  r = {static_cast<uint32_t>(values[0]), static_cast<uint32_t>(values[1]), static_cast<uint32_t>(values[2]),
       static_cast<uint32_t>(values[3])};
#else
  __cpuid_count(leaf, subleaf, r.eax, r.ebx, r.ecx, r.edx);
#endif
  return r;
}

uint64_t Xcr0() {
#if defined(_MSC_VER)
  return _xgetbv(0);
#else
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
#endif
}

// On Linux a process has to request permission for tiles: https://docs.kernel.org/arch/x86/xstate.html
bool MayUseTiles() {
#if defined(__linux__) && defined(RNNQC_BUILD_AMXINT8)
  const char* wanted = std::getenv("RNNQC_ISA");
  if (wanted != nullptr && *wanted != '\0' && std::strcmp(wanted, "amxint8") != 0) return false;
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool Bit(uint32_t value, int bit) { return ((value >> bit) & 1u) != 0; }

std::vector<std::string> Detect() {
  std::vector<std::string> names;
  const uint32_t last_leaf = Cpuid(0, 0).eax;
  const uint32_t leaf1_ecx = Cpuid(1, 0).ecx;
  if (last_leaf < 7 || !Bit(leaf1_ecx, 27)) return names;  // OSXSAVE: XGETBV may be executed
  constexpr uint64_t kYmmState = 0x06;                     // XMM and YMM registers are saved by the system
  constexpr uint64_t kZmmState = 0xe6;                     // and opmask, ZMM0-15 upper halves, ZMM16-31
  const uint64_t state = Xcr0();
  const Registers leaf7 = Cpuid(7, 0);
  const bool avx2 = Bit(leaf1_ecx, 28) && Bit(leaf7.ebx, 5) && (state & kYmmState) == kYmmState;
  if (!avx2) return names;
  names.emplace_back("avx2");
  if (leaf7.eax >= 1 && Bit(Cpuid(7, 1).eax, 4) && Bit(leaf7.ecx, 8)) names.emplace_back("avxvnni");  // and GFNI
  const bool avx512 =
      Bit(leaf7.ebx, 16) && Bit(leaf7.ebx, 17) && Bit(leaf7.ebx, 30) && Bit(leaf7.ebx, 31);  // F, DQ, BW, VL
  if (!avx512 || !Bit(leaf7.ecx, 11) || (state & kZmmState) != kZmmState) return names;
  names.emplace_back("avx512vnni");
  if (!Bit(leaf7.ecx, 1)) return names;
  names.emplace_back("avx512vbmi");
  constexpr uint64_t kTileState = 0x60000;  // configuration and data of tiles
  const bool tiles = Bit(leaf7.edx, 24) && Bit(leaf7.edx, 25) && (state & kTileState) == kTileState;
  if (tiles && Bit(leaf7.ecx, 8) && MayUseTiles()) names.emplace_back("amxint8");  // and GFNI
  return names;
}

#elif defined(RNNQC_ARM64)

#if defined(__APPLE__)
// No such name on systems older than the feature's.
bool Has(const char* feature) {
  int present = 0;
  size_t size = sizeof(present);
  return sysctlbyname(feature, &present, &size, nullptr, 0) == 0 && present != 0;
}
#endif

std::vector<std::string> Detect() {
  std::vector<std::string> names{"neon"};
#if defined(__linux__)
  constexpr unsigned long kMatrixProducts = 1ul << 13;  // HWCAP2_I8MM, which older headers lack
  const bool dot_products = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  const bool matrix_products = (getauxval(AT_HWCAP2) & kMatrixProducts) != 0;
#elif defined(__APPLE__)
  const bool dot_products = Has("hw.optional.arm.FEAT_DotProd");
  const bool matrix_products = Has("hw.optional.arm.FEAT_I8MM");
#else
  const bool dot_products = false;
  const bool matrix_products = false;
#endif
  if (dot_products) names.emplace_back("neondot");
  if (dot_products && matrix_products) names.emplace_back("neoni8mm");
  return names;
}

#else

std::vector<std::string> Detect() { return {}; }

#endif

}  // namespace

std::vector<std::string> CpuFeatureNames() {
  static const std::vector<std::string> names = Detect();
  return names;
}

bool CpuSupports(const std::string& isa) {
  if (isa == "portable" || isa == "reference") return true;
  for (const std::string& name : CpuFeatureNames()) {
    if (name == isa) return true;
  }
  return false;
}

}  // namespace rnnqc
