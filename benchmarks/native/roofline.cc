// The limits of this machine with int8 weights: products from registers, and weights streamed from a buffer.
//
//   roofline THREADS [ISA]      then lines on stdin:
//   prepare BYTES ...           sizes of buffers, divided among the threads
//   burst SECONDS               prints {"peak": GMAC/s, "ascending": [GB/s of each size], "zigzag": [...]}
//
// One weight byte is one multiply-accumulate, so that GB/s from a buffer are GMAC/s at batch size 1. All threads
// measure at the same time; each result is the best of slices of about 2 ms.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

constexpr int64_t kChunk = 1024;
constexpr int64_t kPeakChunks = 64000;
constexpr double kSlice = 2e-3;

// Registers only: `chunks` times kChunk multiply-accumulates. The sums are of no interest and never read.
using Peak = void (*)(int64_t chunks);
// The same with weights from memory, chunk by chunk.
using Stream = void (*)(const uint8_t* weights, int64_t chunks, int64_t step);

struct Isa {
  const char* name;
  bool available;
  Peak peak;
  Stream stream;
};

#if defined(__x86_64__)

// clang-format off
// Accumulators 0-15 and the activations in 16.
#define ZMM(n, weights) "vpdpbusd " weights ", %%zmm16, %%zmm" #n "\n\t"
#define ZMM_MEMORY(n) ZMM(n, "64*" #n "(%0)")
#define ZMM_REGISTER(n) ZMM(n, "%%zmm17")
#define TIMES_16(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define CLOBBERS \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", \
  "xmm13", "xmm14", "xmm15", "memory"

// Accumulators 0-11 (the product takes 4 to 5 cycles, two start in each) and the activations in 15.
#define YMM(n, weights) "%{vex%} vpdpbusd " weights ", %%ymm15, %%ymm" #n "\n\t"
#define YMM_REGISTER(n) YMM(n, "%%ymm14")
#define YMM_REGISTERS_8 \
  YMM_REGISTER(0) YMM_REGISTER(1) YMM_REGISTER(2) YMM_REGISTER(3) \
  YMM_REGISTER(4) YMM_REGISTER(5) YMM_REGISTER(6) YMM_REGISTER(7)
#define YMM_REGISTERS_4 YMM_REGISTER(8) YMM_REGISTER(9) YMM_REGISTER(10) YMM_REGISTER(11)
#define YMM_ROWS_8(at) \
  YMM(0, #at "+0(%0)") YMM(1, #at "+32(%0)") YMM(2, #at "+64(%0)") YMM(3, #at "+96(%0)") \
  YMM(4, #at "+128(%0)") YMM(5, #at "+160(%0)") YMM(6, #at "+192(%0)") YMM(7, #at "+224(%0)")
#define YMM_ROWS_4(at) YMM(8, #at "+0(%0)") YMM(9, #at "+32(%0)") YMM(10, #at "+64(%0)") YMM(11, #at "+96(%0)")

// Without VNNI three instructions; exact for weights of 7 bits only, so an upper bound for exact kernels.
#define AVX2(n, sum, weights) \
  "vpmaddubsw " weights ", %%ymm15, %%ymm" #n "\n\t" \
  "vpmaddwd %%ymm14, %%ymm" #n ", %%ymm" #n "\n\t" \
  "vpaddd %%ymm" #n ", %%ymm" #sum ", %%ymm" #sum "\n\t"
#define AVX2_ROWS(at) \
  AVX2(0, 8, #at "+0(%0)") AVX2(1, 9, #at "+32(%0)") AVX2(2, 10, #at "+64(%0)") AVX2(3, 11, #at "+96(%0)") \
  AVX2(4, 8, #at "+128(%0)") AVX2(5, 9, #at "+160(%0)") AVX2(6, 10, #at "+192(%0)") AVX2(7, 11, #at "+224(%0)")
#define AVX2_REGISTER(n, sum) AVX2(n, sum, "%%ymm12")
#define AVX2_REGISTERS \
  AVX2_REGISTER(0, 8) AVX2_REGISTER(1, 9) AVX2_REGISTER(2, 10) AVX2_REGISTER(3, 11) \
  AVX2_REGISTER(4, 8) AVX2_REGISTER(5, 9) AVX2_REGISTER(6, 10) AVX2_REGISTER(7, 11)
// clang-format on

void PeakAvx512Vnni(int64_t chunks) {
  for (int64_t i = 0; i < chunks; ++i) asm volatile(TIMES_16(ZMM_REGISTER)::: CLOBBERS);
  asm volatile("vzeroupper");
}

void StreamAvx512Vnni(const uint8_t* weights, int64_t chunks, int64_t step) {
  for (int64_t i = 0; i < chunks; ++i, weights += step) asm volatile(TIMES_16(ZMM_MEMORY)::"r"(weights) : CLOBBERS);
  asm volatile("vzeroupper");
}

#if defined(__linux__)
// Tiles 0-3 hold sums, 4 and 5 codes, 6 and 7 weights: 16 rows of 64 bytes each. Sixteen rows share the weights, so
// that a chunk of kChunk multiply-accumulates is a sixteenth of an instruction.
void PeakAmxInt8(int64_t chunks) {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  asm volatile("ldtilecfg %0" ::"m"(config));
  for (int64_t i = 0; i < chunks / 64; ++i) {
    asm volatile(
        "tdpbusd %%tmm6, %%tmm4, %%tmm0\n\ttdpbusd %%tmm7, %%tmm4, %%tmm1\n\t"
        "tdpbusd %%tmm6, %%tmm5, %%tmm2\n\ttdpbusd %%tmm7, %%tmm5, %%tmm3" ::
            : "memory");
  }
  asm volatile("tilerelease");
}

bool HasAmxInt8() {
  uint32_t a = 7, b = 0, c = 0, d = 0;
  asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return __builtin_cpu_supports("avx512vnni") && (d >> 24 & 3) == 3 &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

void PeakAvxVnni(int64_t chunks) {
  for (int64_t i = 0; i < chunks; ++i) {
    asm volatile(YMM_REGISTERS_8 YMM_REGISTERS_4 YMM_REGISTERS_8 YMM_REGISTERS_4 YMM_REGISTERS_8::: CLOBBERS);
  }
}

void StreamAvxVnni(const uint8_t* weights, int64_t chunks, int64_t step) {
  for (int64_t i = 0; i < chunks; ++i, weights += step) {
    asm volatile(YMM_ROWS_8(0) YMM_ROWS_4(256) YMM_ROWS_8(384) YMM_ROWS_4(640) YMM_ROWS_8(768)::"r"(weights)
                 : CLOBBERS);
  }
}

void PeakAvx2(int64_t chunks) {
  for (int64_t i = 0; i < chunks; ++i) {
    asm volatile(AVX2_REGISTERS AVX2_REGISTERS AVX2_REGISTERS AVX2_REGISTERS::: CLOBBERS);
  }
}

void StreamAvx2(const uint8_t* weights, int64_t chunks, int64_t step) {
  for (int64_t i = 0; i < chunks; ++i, weights += step) {
    asm volatile(AVX2_ROWS(0) AVX2_ROWS(256) AVX2_ROWS(512) AVX2_ROWS(768)::"r"(weights) : CLOBBERS);
  }
}

bool HasAvxVnni() {
  uint32_t a = 7, b = 0, c = 1, d = 0;
  asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  return __builtin_cpu_supports("avx2") && (a >> 4 & 1);
}

#elif defined(__aarch64__)

// clang-format off
#define SDOT(n, w) "sdot v" #n ".4s, v" #w ".16b, v28.16b\n\t"
#define SDOT_16 \
  SDOT(0, 16) SDOT(1, 17) SDOT(2, 18) SDOT(3, 19) SDOT(4, 20) SDOT(5, 21) SDOT(6, 22) SDOT(7, 23) \
  SDOT(8, 16) SDOT(9, 17) SDOT(10, 18) SDOT(11, 19) SDOT(12, 20) SDOT(13, 21) SDOT(14, 22) SDOT(15, 23)
#define LOAD_SDOT_4(a, b, c, d) \
  "ld1 {v16.16b-v19.16b}, [%0], #64\n\t" SDOT(a, 16) SDOT(b, 17) SDOT(c, 18) SDOT(d, 19) \
  "ld1 {v20.16b-v23.16b}, [%0], #64\n\t" SDOT(a, 20) SDOT(b, 21) SDOT(c, 22) SDOT(d, 23)
#define CLOBBERS \
  "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", \
  "v17", "v18", "v19", "v20", "v21", "v22", "v23", "memory"
// clang-format on

void PeakDotprod(int64_t chunks) {
  for (int64_t i = 0; i < chunks; ++i) {
    asm volatile(".arch armv8.2-a+dotprod\n\t" SDOT_16 SDOT_16 SDOT_16 SDOT_16::: CLOBBERS);
  }
}

void StreamDotprod(const uint8_t* weights, int64_t chunks, int64_t step) {
  for (int64_t i = 0; i < chunks; ++i, weights += step) {
    const uint8_t* at = weights;
    asm volatile(".arch armv8.2-a+dotprod\n\t" LOAD_SDOT_4(0, 1, 2, 3) LOAD_SDOT_4(4, 5, 6, 7) LOAD_SDOT_4(8, 9, 10, 11)
                     LOAD_SDOT_4(12, 13, 14, 15) LOAD_SDOT_4(0, 1, 2, 3) LOAD_SDOT_4(4, 5, 6, 7)
                         LOAD_SDOT_4(8, 9, 10, 11) LOAD_SDOT_4(12, 13, 14, 15)
                 : "+r"(at)::CLOBBERS);
  }
}

#endif

void StreamPortable(const uint8_t* weights, int64_t chunks, int64_t step) {
  int32_t sums[64] = {};
  for (int64_t i = 0; i < chunks; ++i, weights += step) {
    for (int64_t k = 0; k < kChunk; k += 64) {
      for (int64_t j = 0; j < 64; ++j) sums[j] += static_cast<int8_t>(weights[k + j]) * static_cast<int16_t>(i);
    }
  }
  asm volatile("" ::"r"(sums) : "memory");
}

void PeakPortable(int64_t chunks) {
  static const uint8_t weights[kChunk] = {};
  StreamPortable(weights, chunks, 0);
}

std::vector<Isa> Isas() {
  std::vector<Isa> isas;
#if defined(__x86_64__)
#if defined(__linux__)
  // One row streams its weights into vpdpbusd, which takes them faster than tiles do.
  isas.push_back({"amxint8", HasAmxInt8(), PeakAmxInt8, StreamAvx512Vnni});
#endif
  isas.push_back({"avx512vnni", __builtin_cpu_supports("avx512vnni") != 0, PeakAvx512Vnni, StreamAvx512Vnni});
  isas.push_back({"avxvnni", HasAvxVnni(), PeakAvxVnni, StreamAvxVnni});
  isas.push_back({"avx2", __builtin_cpu_supports("avx2") != 0, PeakAvx2, StreamAvx2});
#elif defined(__aarch64__) && defined(__linux__)
  isas.push_back({"dotprod", (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0, PeakDotprod, StreamDotprod});
#endif
  isas.push_back({"portable", true, PeakPortable, StreamPortable});
  return isas;
}

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

class Barrier {
 public:
  explicit Barrier(int count) : count_(count) {}
  void Wait() {
    const int generation = generation_.load();
    if (arrived_.fetch_add(1) + 1 == count_) {
      arrived_.store(0);
      generation_.fetch_add(1);
    } else {
      while (generation_.load() == generation) std::this_thread::yield();
    }
  }

 private:
  const int count_;
  std::atomic<int> arrived_{0}, generation_{0};
};

// Bytes per nanosecond: repeats `work` (which says how many bytes it took) for a slice.
double Rate(const std::function<int64_t()>& work) {
  int64_t bytes = work() * 0;
  const double begin = Now();
  double end = begin;
  do {
    bytes += work();
    end = Now();
  } while (end - begin < kSlice);
  return static_cast<double>(bytes) * 1e-9 / (end - begin);
}

struct Buffer {
  uint8_t* data;
  int64_t chunks;
};

Buffer Allocate(int64_t bytes) {
  const int64_t chunks = std::max<int64_t>(1, bytes / kChunk);
  constexpr size_t kPage = size_t{1} << 21;
  const size_t size = (static_cast<size_t>(chunks * kChunk) + kPage - 1) / kPage * kPage;
  auto* data = static_cast<uint8_t*>(std::aligned_alloc(kPage, size));
#if defined(MADV_HUGEPAGE)
  madvise(data, size, MADV_HUGEPAGE);
#endif
  std::memset(data, 1, size);
  return {data, chunks};
}

class Roofline {
 public:
  Roofline(const Isa& isa, int threads) : isa_(isa), threads_(threads) {}

  void Prepare(const std::vector<int64_t>& sizes) {
    for (const Buffer& buffer : buffers_) std::free(buffer.data);
    buffers_.clear();
    sizes_ = sizes.size();
    for (const int64_t size : sizes) {
      for (int t = 0; t < threads_; ++t) buffers_.push_back(Allocate(size / threads_));
    }
  }

  std::string Burst(double seconds) {
    const size_t count = 1 + 2 * sizes_;
    const int slices = std::max(1, static_cast<int>(seconds / kSlice / static_cast<double>(count)));
    std::vector<double> best(count);
    std::vector<double> rates(static_cast<size_t>(threads_));
    Barrier barrier(threads_);
    auto body = [&](int thread) {
      for (size_t what = 0; what < count; ++what) {
        const auto work = Work(what, thread);
        for (int slice = 0; slice < slices; ++slice) {
          barrier.Wait();
          rates[static_cast<size_t>(thread)] = Rate(work);
          barrier.Wait();
          if (thread == 0) {
            double sum = 0;
            for (const double rate : rates) sum += rate;
            best[what] = std::max(best[what], sum);
          }
        }
      }
    };
    std::vector<std::thread> others;
    for (int t = 1; t < threads_; ++t) others.emplace_back(body, t);
    body(0);
    for (std::thread& other : others) other.join();
    std::ostringstream text;
    text << "{\"peak\": " << best[0];
    for (const bool zigzag : {false, true}) {
      text << (zigzag ? "], \"zigzag\": [" : ", \"ascending\": [");
      for (size_t i = 0; i < sizes_; ++i) text << (i ? ", " : "") << best[1 + 2 * i + (zigzag ? 1 : 0)];
    }
    text << "]}";
    return text.str();
  }

 private:
  std::function<int64_t()> Work(size_t what, int thread) const {
    if (what == 0) {
      return [this] {
        isa_.peak(kPeakChunks);
        return kPeakChunks * kChunk;
      };
    }
    const bool zigzag = (what - 1) % 2 != 0;
    const Buffer buffer = buffers_[(what - 1) / 2 * static_cast<size_t>(threads_) + static_cast<size_t>(thread)];
    const int64_t repeats = std::max<int64_t>(1, 128 / buffer.chunks);
    return [this, zigzag, buffer, repeats] {
      for (int64_t i = 0; i < repeats; ++i) {
        isa_.stream(buffer.data, buffer.chunks, kChunk);
        if (zigzag) {
          isa_.stream(buffer.data + (buffer.chunks - 1) * kChunk, buffer.chunks, -kChunk);
        } else {
          isa_.stream(buffer.data, buffer.chunks, kChunk);
        }
      }
      return 2 * repeats * buffer.chunks * kChunk;
    };
  }

  const Isa isa_;
  const int threads_;
  size_t sizes_ = 0;
  std::vector<Buffer> buffers_;
};

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const std::string wanted = argc > 2 ? argv[2] : "";
  const Isa* chosen = nullptr;
  const std::vector<Isa> isas = Isas();
  for (const Isa& isa : isas) {
    if (chosen == nullptr && isa.available && (wanted.empty() || wanted == isa.name)) chosen = &isa;
  }
  if (chosen == nullptr || threads < 1) {
    std::cout << "{\"missing\": \"a processor with " << wanted << "\"}" << std::endl;
    return 2;
  }
  std::cout << "{\"version\": \"" << chosen->name << "\"}" << std::endl;
  Roofline roofline(*chosen, threads);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    if (command == "prepare") {
      std::vector<int64_t> sizes;
      for (int64_t size = 0; words >> size;) sizes.push_back(size);
      roofline.Prepare(sizes);
      std::cout << "{}" << std::endl;
    } else if (command == "burst") {
      double seconds = 0.1;
      words >> seconds;
      std::cout << roofline.Burst(seconds) << std::endl;
    }
  }
  return 0;
}
