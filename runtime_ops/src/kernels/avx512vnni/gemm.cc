// AVX-512 F, DQ, BW, VL and VNNI: sixteen units of one gate to a register.

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/common/compiler.h"
#include "kernels/common/finish_projection.h"
#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

// Rows of a tile of one block.
constexpr int kTileRows = 6;

#include "kernels/avx512vnni/dot.inc"
#include "kernels/avx512vnni/one_row.inc"

// A row's sums over kUnroll parts of k are kept apart, to have enough independent instructions.
constexpr int kUnroll = 4;
constexpr int64_t kTilePrefetchBytes = 8192;

// Sums of one row and kGroups groups of a block, from `start` or 0 if that is null; the weights in ascending or
// descending order.
template <int kGroups, bool kDescending>
RNNQC_NOINLINE void RowSums(const MatmulArgs& m, const int32_t* /*code_sums*/, int64_t block, const int32_t* start,
                            int32_t* sums) {
  constexpr int64_t kStep = kDescending ? -1 : 1;
  const int64_t depth = m.k_padded / 4;
  const int64_t first = kDescending ? depth - 1 : 0;
  const uint8_t* a = m.a + 4 * first;
  const __m512i* w = static_cast<const __m512i*>(m.weights) + (block * depth + first) * kGates;
  __m512i sum[kUnroll][kGroups];
  RNNQC_UNROLL(4)
  for (int i = 0; i < kUnroll; ++i) {
    RNNQC_UNROLL(4)
    for (int g = 0; g < kGroups; ++g) {
      sum[i][g] = i > 0 || start == nullptr ? _mm512_setzero_si512() : _mm512_loadu_si512(start + g * 16);
    }
  }
  int64_t j = 0;
  for (; j + kUnroll <= depth; j += kUnroll) {
    RNNQC_UNROLL(4)
    for (int i = 0; i < kUnroll; ++i) {
      const __m512i codes = BroadcastCodes(a + i * kStep * 4);
      RNNQC_UNROLL(4)
      for (int g = 0; g < kGroups; ++g) {
        const __m512i* weights = w + i * kStep * kGates + g;
        _mm_prefetch(reinterpret_cast<const char*>(weights) + kStep * kPrefetchBytes, _MM_HINT_T0);
        AddProducts(&sum[i][g], codes, weights);
      }
    }
    a += kUnroll * kStep * 4;
    w += kUnroll * kStep * kGates;
  }
  for (; j < depth; ++j) {
    const __m512i codes = BroadcastCodes(a);
    RNNQC_UNROLL(4)
    for (int g = 0; g < kGroups; ++g) AddProducts(&sum[0][g], codes, w + g);
    a += kStep * 4;
    w += kStep * kGates;
  }
  RNNQC_UNROLL(4)
  for (int g = 0; g < kGroups; ++g) {
    const __m512i low = _mm512_add_epi32(sum[0][g], sum[1][g]);
    const __m512i high = _mm512_add_epi32(sum[2][g], sum[3][g]);
    _mm512_storeu_si512(sums + g * 16, _mm512_add_epi32(low, high));
  }
}

// Sums of kRows rows and one block; the weights in ascending or descending order.
template <int kRows, bool kDescending>
RNNQC_NOINLINE void TileSums(const MatmulArgs& m, int64_t row, int64_t block, const int32_t* start, int32_t* sums,
                             int64_t sums_stride) {
  constexpr int64_t kStep = kDescending ? -1 : 1;
  const int64_t depth = m.k_padded / 4;
  const int64_t first = kDescending ? depth - 1 : 0;
  const uint8_t* a = m.a + row * m.a_stride + 4 * first;
  const __m512i* w = static_cast<const __m512i*>(m.weights) + (block * depth + first) * kGates;
  __m512i sum[kRows][kGates];
  RNNQC_UNROLL(6)
  for (int r = 0; r < kRows; ++r) {
    RNNQC_UNROLL(4)
    for (int g = 0; g < kGates; ++g) {
      sum[r][g] = start == nullptr ? _mm512_setzero_si512() : _mm512_loadu_si512(start + g * 16);
    }
  }
  for (int64_t j = 0; j < depth; ++j) {
    RNNQC_UNROLL(4)
    for (int g = 0; g < kGates; ++g) {
      _mm_prefetch(reinterpret_cast<const char*>(w + g) + kStep * kTilePrefetchBytes, _MM_HINT_T0);
    }
    const __m512i w0 = _mm512_load_si512(w);
    const __m512i w1 = _mm512_load_si512(w + 1);
    const __m512i w2 = _mm512_load_si512(w + 2);
    const __m512i w3 = _mm512_load_si512(w + 3);
    RNNQC_UNROLL(6)
    for (int r = 0; r < kRows; ++r) {
      const __m512i codes = BroadcastCodes(a + r * m.a_stride);
      AddProducts(&sum[r][0], codes, w0);
      AddProducts(&sum[r][1], codes, w1);
      AddProducts(&sum[r][2], codes, w2);
      AddProducts(&sum[r][3], codes, w3);
    }
    a += kStep * 4;
    w += kStep * kGates;
  }
  RNNQC_UNROLL(6)
  for (int r = 0; r < kRows; ++r) {
    RNNQC_UNROLL(4)
    for (int g = 0; g < kGates; ++g) _mm512_storeu_si512(sums + r * sums_stride + g * 16, sum[r][g]);
  }
}

using TileSumsFn = void(const MatmulArgs& m, int64_t row, int64_t block, const int32_t* start, int32_t* sums,
                        int64_t sums_stride);

// Weights of 64 bytes of kS4Pairs as int8 numbers of 16 times their value.
inline __m512i LowerTimes16(__m512i bytes) {
  constexpr int kAndThenXor = 0x6a;  // (a & b) ^ c
  return _mm512_ternarylogic_epi32(_mm512_slli_epi16(bytes, 4), _mm512_set1_epi8(-16), _mm512_set1_epi8(-128),
                                   kAndThenXor);
}
inline __m512i UpperTimes16(__m512i bytes) { return _mm512_and_si512(bytes, _mm512_set1_epi8(-16)); }

// Sums of kRows rows and one block.
template <int kRows>
RNNQC_NOINLINE void TileSumsS4(const MatmulArgs& m, int64_t row, int64_t block, const int32_t* start, int32_t* sums,
                               int64_t sums_stride) {
  const Groups groups(m, block);
  const int64_t a_stride = m.a_stride;
  const int64_t count = groups.count();
  const uint8_t* a = m.a + row * a_stride;
  const __m512i* w = static_cast<const __m512i*>(m.weights) + block * groups.depth * kGates;
  RNNQC_UNROLL(6)
  for (int r = 0; r < kRows; ++r) {
    RNNQC_UNROLL(4)
    for (int g = 0; g < kGates; ++g) {
      const __m512i first = start == nullptr ? _mm512_setzero_si512() : _mm512_loadu_si512(start + g * 16);
      _mm512_storeu_si512(sums + r * sums_stride + g * 16, first);
    }
  }
  for (int64_t group = 0; group < count; ++group) {
    const int64_t eights = groups.Eights(group);
    __m512i sum[kRows][kGates];
    RNNQC_UNROLL(6)
    for (int r = 0; r < kRows; ++r) {
      RNNQC_UNROLL(4)
      for (int g = 0; g < kGates; ++g) sum[r][g] = _mm512_setzero_si512();
    }
    for (int64_t j = 0; j < eights; ++j) {
      RNNQC_UNROLL(2)
      for (int half = 0; half < 2; ++half) {
        __m512i first = _mm512_load_si512(w);
        __m512i second = _mm512_load_si512(w + 1);
        Keep(&first);
        Keep(&second);
        const __m512i w0 = LowerTimes16(first);
        const __m512i w1 = UpperTimes16(first);
        const __m512i w2 = LowerTimes16(second);
        const __m512i w3 = UpperTimes16(second);
        RNNQC_UNROLL(6)
        for (int r = 0; r < kRows; ++r) {
          const __m512i codes = BroadcastCodes(a + r * a_stride + 4 * half);
          AddProducts(&sum[r][0], codes, w0);
          AddProducts(&sum[r][1], codes, w1);
          AddProducts(&sum[r][2], codes, w2);
          AddProducts(&sum[r][3], codes, w3);
        }
        w += kPairs;
      }
      a += 8;
    }
    const uint8_t* multipliers = groups.multipliers == nullptr ? nullptr : groups.multipliers + group * kBlockColumns;
    RNNQC_UNROLL(4)
    for (int g = 0; g < kGates; ++g) {
      RNNQC_UNROLL(6)
      for (int r = 0; r < kRows; ++r) {
        int32_t* to = sums + r * sums_stride + g * 16;
        const __m512i scaled =
            Scaled(_mm512_srai_epi32(sum[r][g], 4), multipliers == nullptr ? nullptr : multipliers + g * 16);
        _mm512_storeu_si512(to, _mm512_add_epi32(_mm512_loadu_si512(to), scaled));
      }
    }
  }
}

#include "kernels/avx512vnni/products_s6.inc"

using RowSumsFn = void(const MatmulArgs& m, const int32_t* code_sums, int64_t block, const int32_t* start,
                       int32_t* sums);

// The products of one order of the weights; a tile has one row only if there is no other, which `row` is for. Several
// rows read the lines of a block of int4 and int6 weights upwards in both orders.
struct Products {
  RowSumsFn* row[kGates];  // by the groups of the block that count, less 1
  TileSumsFn* tile[kTileRows];
};

template <bool kDescending>
constexpr Products kProducts = {
    {RowSums<1, kDescending>, RowSums<2, kDescending>, RowSums<3, kDescending>, RowSums<4, kDescending>},
    {nullptr, TileSums<2, kDescending>, TileSums<3, kDescending>, TileSums<4, kDescending>, TileSums<5, kDescending>,
     TileSums<6, kDescending>}};

template <bool kDescending>
constexpr Products kProductsS4 = {
    {RowSumsS4<kDescending>, RowSumsS4<kDescending>, RowSumsS4<kDescending>, RowSumsS4<kDescending>},
    {nullptr, TileSumsS4<2>, TileSumsS4<3>, TileSumsS4<4>, TileSumsS4<5>, TileSumsS4<6>}};

template <bool kDescending>
constexpr Products kProductsS6 = {
    {RowSumsS6<kDescending>, RowSumsS6<kDescending>, RowSumsS6<kDescending>, RowSumsS6<kDescending>},
    {nullptr, TileSumsS6<2>, TileSumsS6<3>, TileSumsS6<4>, TileSumsS6<5>, TileSumsS6<6>}};

// Rows of the next tile, so that the remaining tiles are about equal.
inline int64_t NextTile(int64_t rows_left) {
  if (rows_left <= kTileRows) return rows_left;
  const int64_t tiles = (rows_left + kTileRows - 1) / kTileRows;
  return (rows_left + tiles - 1) / tiles;
}

// Start values in pairs of int16 numbers, lower seven bits and the rest, so that with the pair (z, 128 z) their
// products add up to z times the value.
class StartPairs {
 public:
  // Whether the values of a block are small enough.
  bool Set(const int32_t* start) {
    __mmask16 fits = 0xffff;
    RNNQC_UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      const __m512i value = _mm512_loadu_si512(start + i * 16);
      const __m512i upper = _mm512_srai_epi32(value, 7);
      const __m512i narrow = _mm512_srai_epi32(_mm512_slli_epi32(upper, 16), 16);
      fits &= _mm512_cmpeq_epi32_mask(narrow, upper);
      pairs_[i] = _mm512_or_si512(_mm512_slli_epi32(upper, 16), _mm512_and_si512(value, _mm512_set1_epi32(127)));
    }
    return fits == 0xffff;
  }

  // sum + zero_point * value of sixteen columns.
  __m512i Add(int i, __m512i sum, int32_t zero_point) const {
    return _mm512_dpwssd_epi32(sum, pairs_[i], _mm512_set1_epi32(zero_point * (1 + (128 << 16))));
  }

 private:
  __m512i pairs_[4];
};

// p of some rows and kGroups groups of a block, from rows of sums without start values, which may stand where p goes
// to.
template <int kGroups>
void FinishGroups(const ProjectArgs& args, int64_t row, int64_t rows, int64_t block, const int32_t* sums) {
  const int64_t column = block * kBlockColumns;
  const int32_t* start = args.matmul.start + column;
  const int64_t p_stride = args.p_stride;
  float* p = args.p + row * p_stride + column;
  __m512 multiplier[kGroups], bias[kGroups];
  RNNQC_UNROLL(4)
  for (int i = 0; i < kGroups; ++i) {
    multiplier[i] = _mm512_loadu_ps(args.multiplier + column + i * 16);
    bias[i] = _mm512_loadu_ps(args.bias + column + i * 16);
  }
  const bool grids = args.row_scale != nullptr;
  const float* row_scale = grids ? args.row_scale + row : nullptr;
  const int32_t* zero_point = grids ? args.row_zero_point + row : nullptr;
  StartPairs pairs;
  const bool paired = rows > 1 && pairs.Set(start);
  for (int64_t r = 0; r < rows; ++r) {
    // Without grids the factors are 1, which changes nothing.
    const __m512 scale = _mm512_set1_ps(grids ? row_scale[r] : 1.0f);
    const int32_t z = grids ? zero_point[r] : 1;
    RNNQC_UNROLL(4)
    for (int i = 0; i < kGroups; ++i) {
      const __m512i sum = _mm512_loadu_si512(sums + r * kBlockColumns + i * 16);
      const __m512i all =
          paired ? pairs.Add(i, sum, z)
                 : _mm512_add_epi32(sum, _mm512_mullo_epi32(_mm512_loadu_si512(start + i * 16), _mm512_set1_epi32(z)));
      const __m512 value = _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(all), scale), multiplier[i]);
      _mm512_storeu_ps(p + r * p_stride + i * 16, _mm512_add_ps(value, bias[i]));
    }
  }
}

void FinishRows(const ProjectArgs& args, int64_t row, int64_t rows, int64_t block, const int32_t* sums) {
  constexpr decltype(&FinishGroups<1>) kFinish[] = {FinishGroups<1>, FinishGroups<2>, FinishGroups<3>, FinishGroups<4>};
  kFinish[ColumnsOf(args.matmul, block) / 16 - 1](args, row, rows, block, sums);
}

// visit(block) in the order that the call asks for.
template <typename Visit>
RNNQC_FORCEINLINE void ForEachBlock(const MatmulArgs& m, const Visit& visit) {
  if (m.descending) {
    for (int64_t block = m.block_end; block-- > m.block_begin;) visit(block);
  } else {
    for (int64_t block = m.block_begin; block < m.block_end; ++block) visit(block);
  }
}

// visit(row, rows, block) for all tiles of rows of all blocks.
template <typename Visit>
RNNQC_FORCEINLINE void ForEachTile(const MatmulArgs& m, const Visit& visit) {
  ForEachBlock(m, [&](int64_t block) {
    for (int64_t row = 0; row < m.rows;) {
      const int64_t rows = NextTile(m.rows - row);
      visit(row, rows, block);
      row += rows;
    }
  });
}

// `code_sums` are those of a single row, if its products need them.
void Recurrent(const RecurrentArgs& args, const Products& products, const int32_t* code_sums = nullptr) {
  const MatmulArgs& m = args.matmul;
  if (m.rows == 1) {
    ForEachBlock(m, [&](int64_t block) {
      products.row[ColumnsOf(m, block) / 16 - 1](m, code_sums, block, m.start + block * kBlockColumns,
                                                 args.acc + block * kBlockColumns);
    });
    return;
  }
  ForEachTile(m, [&](int64_t row, int64_t rows, int64_t block) {
    const int64_t column = block * kBlockColumns;
    int32_t* acc = args.acc + row * args.acc_stride + column;
    products.tile[rows - 1](m, row, block, m.start + column, acc, args.acc_stride);
  });
}

void Project(const ProjectArgs& args, const Products& products, const int32_t* code_sums = nullptr) {
  const MatmulArgs& m = args.matmul;
  alignas(kAlignment) int32_t sums[kTileRows * kBlockColumns];
  if (m.rows == 1) {
    ForEachBlock(m, [&](int64_t block) {
      products.row[ColumnsOf(m, block) / 16 - 1](m, code_sums, block, nullptr, sums);
      FinishRows(args, 0, 1, block, sums);
    });
    return;
  }
  ForEachTile(m, [&](int64_t row, int64_t rows, int64_t block) {
    products.tile[rows - 1](m, row, block, nullptr, sums, kBlockColumns);
    FinishRows(args, row, rows, block, sums);
  });
}

// Whether the weights of one row are mostly in the first-level cache, where prefetching them only takes time.
bool IsNearRow(const MatmulArgs& m) {
  constexpr int64_t kNearWeights = 48 * 1024;
  return m.rows == 1 && Weights(m) <= kNearWeights;
}

// run(args, products) with the sums of the codes of a single row.
template <typename Args, typename Run>
void WithCodeSums(const Args& args, const Products& products, const Run& run) {
  if (args.matmul.rows == 1) {
    run(args, products, CodeSums(args.matmul).data());
  } else {
    run(args, products, nullptr);
  }
}

}  // namespace

void u8s8_s32_recurrent_6x64__avx512vnni(const RecurrentArgs& args) {
  if (IsNearRow(args.matmul)) return RowOfBlocks<2>(args.matmul, args.matmul.start, args.acc);
  Recurrent(args, args.matmul.descending ? kProducts<true> : kProducts<false>);
}

void u8s8_f32_project_6x64__avx512vnni(const ProjectArgs& args) {
  Project(args, args.matmul.descending ? kProducts<true> : kProducts<false>);
}

void s32_f32_finish_projection__avx512vnni(const ProjectArgs& args, int64_t row, int64_t rows, int64_t block,
                                           const int32_t* sums) {
  FinishRows(args, row, rows, block, sums);
}

void u8s4_s32_recurrent_6x64__avx512vnni(const RecurrentArgs& args) {
  WithCodeSums(args, args.matmul.descending ? kProductsS4<true> : kProductsS4<false>, Recurrent);
}

void u8s4_f32_project_6x64__avx512vnni(const ProjectArgs& args) {
  WithCodeSums(args, args.matmul.descending ? kProductsS4<true> : kProductsS4<false>, Project);
}

void u8s6_s32_recurrent_6x64__avx512vnni(const RecurrentArgs& args) {
  WithCodeSums(args, args.matmul.descending ? kProductsS6<true> : kProductsS6<false>, Recurrent);
}

void u8s6_f32_project_6x64__avx512vnni(const ProjectArgs& args) {
  WithCodeSums(args, args.matmul.descending ? kProductsS6<true> : kProductsS6<false>, Project);
}

}  // namespace rnnqc
