// AVX-VNNI: the integer products of AVX2's cell in four-way dot products, eight units of one gate to a register. GFNI,
// which every processor with AVX-VNNI has, unpacks int4 numbers.

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/common/compiler.h"
#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

// Rows of a tile. With sixteen registers a tile of three rows has room for the sums of two gates.
constexpr int kTileRows = 3;
constexpr int64_t kPrefetchBytes = 2048;
constexpr int kRegisters = static_cast<int>(kBlockColumns / 8);

// Adds four products of unsigned codes and signed weights to each lane. As an instruction with a memory operand: g++
// turns the intrinsic's operand into separate loads and copies of accumulators.
RNNQC_FORCEINLINE void AddProducts(__m256i* sum, __m256i codes, const __m256i* weights) {
#if defined(__GNUC__)
  __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(*sum) : "x"(codes), "m"(*weights));
#else
  *sum = _mm256_dpbusd_avx_epi32(*sum, codes, *weights);
#endif
}

RNNQC_FORCEINLINE void AddProducts(__m256i* sum, __m256i codes, __m256i weights) {
#if defined(__GNUC__)
  __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(*sum) : "x"(codes), "x"(weights));
#else
  *sum = _mm256_dpbusd_avx_epi32(*sum, codes, weights);
#endif
}

inline __m256i BroadcastCodes(const uint8_t* codes) {
  int32_t four;
  std::memcpy(&four, codes, sizeof(four));
  return _mm256_set1_epi32(four);
}

inline __m256i LoadSums(const int32_t* sums) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums)); }
inline void StoreSums(int32_t* sums, __m256i value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums), value); }

using SumsFn = void(const MatmulArgs& m, int64_t row, int64_t block, const int32_t* start, int32_t* sums,
                    int64_t sums_stride);

// Sums of kRows rows and one block, kPart registers of eight columns at a time, from `start` or 0 if that is null.
template <int kRows, int kPart>
RNNQC_NOINLINE void TileSums(const MatmulArgs& m, int64_t row, int64_t block, const int32_t* start, int32_t* sums,
                             int64_t sums_stride) {
  const uint8_t* a = m.a + row * m.a_stride;
  const int64_t depth = m.k_padded / 4;
  for (int part = 0; part < kRegisters; part += kPart) {
    const __m256i* w = static_cast<const __m256i*>(m.weights) + block * depth * kRegisters + part;
    __m256i sum[kRows][kPart];
    RNNQC_UNROLL(3)
    for (int r = 0; r < kRows; ++r) {
      RNNQC_UNROLL(8)
      for (int i = 0; i < kPart; ++i) {
        sum[r][i] = start == nullptr ? _mm256_setzero_si256() : LoadSums(start + (part + i) * 8);
      }
    }
    for (int64_t j = 0; j < depth; ++j) {
      __m256i codes[kRows];
      RNNQC_UNROLL(3)
      for (int r = 0; r < kRows; ++r) codes[r] = BroadcastCodes(a + r * m.a_stride + 4 * j);
      RNNQC_UNROLL(8)
      for (int i = 0; i < kPart; ++i) {
        if (kRows == 1) {
          AddProducts(&sum[0][i], codes[0], w + i);
        } else {
          const __m256i weights = _mm256_load_si256(w + i);
          RNNQC_UNROLL(3)
          for (int r = 0; r < kRows; ++r) AddProducts(&sum[r][i], codes[r], weights);
        }
      }
      w += kRegisters;
    }
    RNNQC_UNROLL(3)
    for (int r = 0; r < kRows; ++r) {
      RNNQC_UNROLL(8)
      for (int i = 0; i < kPart; ++i) StoreSums(sums + r * sums_stride + (part + i) * 8, sum[r][i]);
    }
  }
}

// Sums of one row and one block; the weights in ascending or descending order, prefetched or not.
template <bool kDescending, bool kFetches>
RNNQC_NOINLINE void RowSums(const MatmulArgs& m, int64_t block, const int32_t* start, int32_t* sums) {
  constexpr int64_t kStep = kDescending ? -1 : 1;
  const int64_t depth = m.k_padded / 4;
  const int64_t first = kDescending ? depth - 1 : 0;
  const uint8_t* a = m.a + 4 * first;
  const __m256i* w = static_cast<const __m256i*>(m.weights) + (block * depth + first) * kRegisters;
  __m256i sum[kRegisters];
  RNNQC_UNROLL(8)
  for (int i = 0; i < kRegisters; ++i) sum[i] = start == nullptr ? _mm256_setzero_si256() : LoadSums(start + i * 8);
  for (int64_t j = 0; j < depth; ++j) {
    const __m256i codes = BroadcastCodes(a);
    RNNQC_UNROLL(8)
    for (int i = 0; i < kRegisters; ++i) {
      if (kFetches && i % 2 == 0) {
        _mm_prefetch(reinterpret_cast<const char*>(w + i) + kStep * kPrefetchBytes, _MM_HINT_T0);
      }
      AddProducts(&sum[i], codes, w + i);
    }
    a += kStep * 4;
    w += kStep * kRegisters;
  }
  RNNQC_UNROLL(8)
  for (int i = 0; i < kRegisters; ++i) StoreSums(sums + i * 8, sum[i]);
}

constexpr SumsFn* kTileSums[kTileRows] = {TileSums<1, 8>, TileSums<2, 4>, TileSums<3, 4>};

// The lower and the upper int4 numbers of 32 bytes as int8 numbers of 16 times their value.
inline __m256i UpperHalves(__m256i bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi8(-16)); }
inline __m256i LowerHalves(__m256i bytes) {
  // A matrix of bits that moves the lower four of each byte up: one instruction instead of a shift and a mask.
  return _mm256_gf2p8affine_epi64_epi8(bytes, _mm256_set1_epi64x(INT64_C(0x0000000001020408)), 0);
}

// Groups of a block's k, counted in eights: all of it if there are no multipliers.
struct Groups {
  int64_t depth;
  int64_t size;
  const uint8_t* multipliers;  // of the block, or null

  Groups(const MatmulArgs& m, int64_t block) : depth(m.k_padded / 8), size(depth), multipliers(nullptr) {
    if (m.multipliers == nullptr) return;
    size = m.group_size / 8;
    multipliers = m.multipliers + block * count() * kBlockColumns;
  }

  int64_t count() const { return size == 0 ? 0 : (depth + size - 1) / size; }
};

// Adds the sums of a group's weights, from sums of 16 times its int4 numbers, to those of the groups before.
RNNQC_FORCEINLINE void AddScaled(__m256i sum16, const uint8_t* multipliers, int32_t* sums) {
  __m256i sum = _mm256_srai_epi32(sum16, 4);
  if (multipliers != nullptr) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(multipliers));
    sum = _mm256_mullo_epi32(sum, _mm256_cvtepu8_epi32(bytes));
  }
  StoreSums(sums, _mm256_add_epi32(LoadSums(sums), sum));
}

// TileSums and, for kDescending, RowSums of int4 weights.
template <int kRows, int kPart, bool kDescending = false>
RNNQC_NOINLINE void TileSumsS4(const MatmulArgs& m, int64_t row, int64_t block, const int32_t* start, int32_t* sums,
                               int64_t sums_stride) {
  constexpr int64_t kStep = kDescending ? -1 : 1;
  constexpr int kSets = kRows * kPart < 8 ? 2 : 1;  // of sums, to have enough independent instructions
  const Groups groups(m, block);
  const int64_t a_stride = m.a_stride;
  const int64_t count = groups.count();
  const int64_t first = kDescending ? groups.depth - 1 : 0;
  const uint8_t* a = m.a + row * a_stride + 8 * first;
  const __m256i* w = static_cast<const __m256i*>(m.weights) + (block * groups.depth + first) * kRegisters;
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kRegisters; ++i) {
      StoreSums(sums + r * sums_stride + i * 8, start == nullptr ? _mm256_setzero_si256() : LoadSums(start + i * 8));
    }
  }
  for (int64_t n = 0; n < count; ++n) {
    const int64_t group = kDescending ? count - 1 - n : n;
    const int64_t left = groups.depth - group * groups.size;
    const int64_t eights = left < groups.size ? left : groups.size;
    const uint8_t* multipliers = groups.multipliers == nullptr ? nullptr : groups.multipliers + group * kBlockColumns;
    for (int part = 0; part < kRegisters; part += kPart) {
      const uint8_t* codes = a;
      const __m256i* weights = w + part;
      __m256i sum[kSets][kRows][kPart];
      RNNQC_UNROLL(2)
      for (int set = 0; set < kSets; ++set) {
        RNNQC_UNROLL(5)
        for (int r = 0; r < kRows; ++r) {
          RNNQC_UNROLL(8)
          for (int i = 0; i < kPart; ++i) sum[set][r][i] = _mm256_setzero_si256();
        }
      }
      for (int64_t j = 0; j < eights; ++j) {
        if (kRows == 1) {
          RNNQC_UNROLL(4)
          for (int i = 0; i < kPart; i += 2) {
            _mm_prefetch(reinterpret_cast<const char*>(weights + i) + kStep * kPrefetchBytes, _MM_HINT_T0);
          }
        }
        RNNQC_UNROLL(2)
        for (int half = 0; half < 2; ++half) {
          if (kRows == 1) {
            const __m256i four = BroadcastCodes(codes + 4 * half);
            RNNQC_UNROLL(8)
            for (int i = 0; i < kPart; ++i) {
              const __m256i bytes = _mm256_load_si256(weights + i);
              AddProducts(&sum[0][0][i], four, half == 0 ? LowerHalves(bytes) : UpperHalves(bytes));
            }
            continue;
          }
          __m256i numbers[kPart];
          RNNQC_UNROLL(8)
          for (int i = 0; i < kPart; ++i) {
            const __m256i bytes = _mm256_load_si256(weights + i);
            numbers[i] = half == 0 ? LowerHalves(bytes) : UpperHalves(bytes);
          }
          RNNQC_UNROLL(5)
          for (int r = 0; r < kRows; ++r) {
            const __m256i four = BroadcastCodes(codes + r * a_stride + 4 * half);
            RNNQC_UNROLL(8)
            for (int i = 0; i < kPart; ++i) AddProducts(&sum[half % kSets][r][i], four, numbers[i]);
          }
        }
        codes += kStep * 8;
        weights += kStep * kRegisters;
      }
      RNNQC_UNROLL(5)
      for (int r = 0; r < kRows; ++r) {
        RNNQC_UNROLL(8)
        for (int i = 0; i < kPart; ++i) {
          const __m256i all = kSets == 1 ? sum[0][r][i] : _mm256_add_epi32(sum[0][r][i], sum[kSets - 1][r][i]);
          AddScaled(all, multipliers == nullptr ? nullptr : multipliers + (part + i) * 8,
                    sums + r * sums_stride + (part + i) * 8);
        }
      }
    }
    a += kStep * eights * 8;
    w += kStep * eights * kRegisters;
  }
}

// Rows of a tile of int4 weights: their unpacking takes registers, and more rows share it.
constexpr int kTileRowsS4 = 5;
constexpr SumsFn* kTileSumsS4[kTileRowsS4] = {TileSumsS4<1, 8>, TileSumsS4<2, 4>, TileSumsS4<3, 2>, TileSumsS4<4, 2>,
                                              TileSumsS4<5, 2>};

// Rows of the next tile, so that the remaining tiles are about equal.
inline int64_t NextTile(int64_t rows_left, int64_t tile_rows) {
  const int64_t tiles = (rows_left + tile_rows - 1) / tile_rows;
  return (rows_left + tiles - 1) / tiles;
}

// p of one row and one block, from its sums without start values.
inline void Finish(const ProjectArgs& args, int64_t row, int64_t block, const int32_t* sums) {
  const int64_t column = block * kBlockColumns;
  const __m256i zero_point = _mm256_set1_epi32(args.row_zero_point != nullptr ? args.row_zero_point[row] : 1);
  float* p = args.p + row * args.p_stride + column;
  for (int64_t i = 0; i < kBlockColumns; i += 8) {
    __m256i start = LoadSums(args.matmul.start + column + i);
    if (args.row_zero_point != nullptr) start = _mm256_mullo_epi32(start, zero_point);
    __m256 value = _mm256_cvtepi32_ps(_mm256_add_epi32(start, LoadSums(sums + i)));
    if (args.row_scale != nullptr) value = _mm256_mul_ps(value, _mm256_set1_ps(args.row_scale[row]));
    value = _mm256_mul_ps(value, _mm256_loadu_ps(args.multiplier + column + i));
    _mm256_storeu_ps(p + i, _mm256_add_ps(value, _mm256_loadu_ps(args.bias + column + i)));
  }
}

// The same signature for one row and for tiles.
template <bool kDescending, bool kFetches>
void OneRowSums(const MatmulArgs& m, int64_t, int64_t block, const int32_t* start, int32_t* sums, int64_t) {
  RowSums<kDescending, kFetches>(m, block, start, sums);
}

template <SumsFn* kAscending, SumsFn* kDescending, int kRows>
void Recurrent(const RecurrentArgs& args, SumsFn* const (&tile_sums)[kRows]) {
  const MatmulArgs& m = args.matmul;
  if (m.rows == 1) {
    for (int64_t i = m.block_begin; i < m.block_end; ++i) {
      const int64_t block = m.descending ? m.block_begin + m.block_end - 1 - i : i;
      const int64_t column = block * kBlockColumns;
      (m.descending ? kDescending : kAscending)(m, 0, block, m.start + column, args.acc + column, 0);
    }
    return;
  }
  for (int64_t i = m.block_begin; i < m.block_end; ++i) {
    const int64_t block = m.descending ? m.block_begin + m.block_end - 1 - i : i;
    const int64_t column = block * kBlockColumns;
    for (int64_t row = 0; row < m.rows;) {
      const int64_t tile = NextTile(m.rows - row, kRows);
      tile_sums[tile - 1](m, row, block, m.start + column, args.acc + row * args.acc_stride + column, args.acc_stride);
      row += tile;
    }
  }
}

template <int kRows>
void Project(const ProjectArgs& args, SumsFn* const (&tile_sums)[kRows]) {
  const MatmulArgs& m = args.matmul;
  alignas(kAlignment) int32_t sums[kRows * kBlockColumns];
  for (int64_t block = m.block_begin; block < m.block_end; ++block) {
    for (int64_t row = 0; row < m.rows;) {
      const int64_t tile = NextTile(m.rows - row, kRows);
      tile_sums[tile - 1](m, row, block, nullptr, sums, kBlockColumns);
      for (int64_t r = 0; r < tile; ++r) Finish(args, row + r, block, sums + r * kBlockColumns);
      row += tile;
    }
  }
}

}  // namespace

void u8s8_s32_recurrent_3x64__avxvnni(const RecurrentArgs& args) {
  // Prefetching weights that are mostly in the first-level cache only takes time.
  constexpr int64_t kNearWeights = 48 * 1024;
  const MatmulArgs& m = args.matmul;
  if (m.k_padded * (m.block_end - m.block_begin) * kBlockColumns <= kNearWeights) {
    Recurrent<OneRowSums<false, false>, OneRowSums<true, false>>(args, kTileSums);
  } else {
    Recurrent<OneRowSums<false, true>, OneRowSums<true, true>>(args, kTileSums);
  }
}

void u8s8_f32_project_3x64__avxvnni(const ProjectArgs& args) { Project(args, kTileSums); }

void u8s4_s32_recurrent_5x64__avxvnni(const RecurrentArgs& args) {
  Recurrent<TileSumsS4<1, 8>, TileSumsS4<1, 8, true>>(args, kTileSumsS4);
}

void u8s4_f32_project_5x64__avxvnni(const ProjectArgs& args) { Project(args, kTileSumsS4); }

}  // namespace rnnqc
