// AVX-VNNI: the integer products of AVX2's cell in four-way dot products, eight units of one gate to a register.

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/compiler.h"
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

// Sums of one row and one block; the weights in ascending or descending order.
template <bool kDescending>
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
      if (i % 2 == 0) _mm_prefetch(reinterpret_cast<const char*>(w + i) + kStep * kPrefetchBytes, _MM_HINT_T0);
      AddProducts(&sum[i], codes, w + i);
    }
    a += kStep * 4;
    w += kStep * kRegisters;
  }
  RNNQC_UNROLL(8)
  for (int i = 0; i < kRegisters; ++i) StoreSums(sums + i * 8, sum[i]);
}

constexpr SumsFn* kTileSums[kTileRows] = {TileSums<1, 8>, TileSums<2, 4>, TileSums<3, 4>};

// Rows of the next tile, so that the remaining tiles are about equal.
inline int64_t NextTile(int64_t rows_left) {
  const int64_t tiles = (rows_left + kTileRows - 1) / kTileRows;
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

}  // namespace

void u8s8_s32_recurrent_3x64__avxvnni(const RecurrentArgs& args) {
  const MatmulArgs& m = args.matmul;
  if (m.rows == 1) {
    if (args.descending) {
      for (int64_t block = m.block_end; block-- > m.block_begin;) {
        RowSums<true>(m, block, m.start + block * kBlockColumns, args.acc + block * kBlockColumns);
      }
    } else {
      for (int64_t block = m.block_begin; block < m.block_end; ++block) {
        RowSums<false>(m, block, m.start + block * kBlockColumns, args.acc + block * kBlockColumns);
      }
    }
    return;
  }
  for (int64_t block = m.block_begin; block < m.block_end; ++block) {
    const int64_t column = block * kBlockColumns;
    for (int64_t row = 0; row < m.rows;) {
      const int64_t tile = NextTile(m.rows - row);
      kTileSums[tile - 1](m, row, block, m.start + column, args.acc + row * args.acc_stride + column, args.acc_stride);
      row += tile;
    }
  }
}

void u8s8_f32_project_3x64__avxvnni(const ProjectArgs& args) {
  const MatmulArgs& m = args.matmul;
  alignas(kAlignment) int32_t sums[kTileRows * kBlockColumns];
  for (int64_t block = m.block_begin; block < m.block_end; ++block) {
    for (int64_t row = 0; row < m.rows;) {
      const int64_t tile = NextTile(m.rows - row);
      kTileSums[tile - 1](m, row, block, nullptr, sums, kBlockColumns);
      for (int64_t r = 0; r < tile; ++r) Finish(args, row + r, block, sums + r * kBlockColumns);
      row += tile;
    }
  }
}

}  // namespace rnnqc
