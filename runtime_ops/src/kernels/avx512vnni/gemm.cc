// AVX-512 F, DQ, BW, VL and VNNI: sixteen units of one gate to a register.

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/common/compiler.h"
#include "kernels/common/finish_projection.h"
#include "kernels/common/fused_cell.h"
#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

// Rows of a tile of one block.
constexpr int kTileRows = 6;

#include "kernels/avx512vnni/dot.inc"

// A row's sums over kUnroll parts of k are kept apart, to have enough independent instructions.
constexpr int kUnroll = 4;
constexpr int64_t kTilePrefetchBytes = 8192;
constexpr int64_t kInputPrefetchBytes = 4096;

// Sums of one row and one block, from `start` or 0 if that is null; the weights in ascending or descending order.
template <bool kDescending>
RNNQC_NOINLINE void RowSums(const MatmulArgs& m, int64_t block, const int32_t* start, int32_t* sums) {
  constexpr int64_t kStep = kDescending ? -1 : 1;
  const int64_t depth = m.k_padded / 4;
  const int64_t first = kDescending ? depth - 1 : 0;
  const uint8_t* a = m.a + 4 * first;
  const __m512i* w = static_cast<const __m512i*>(m.weights) + (block * depth + first) * kGates;
  __m512i sum[kUnroll][kGates];
  RNNQC_UNROLL(4)
  for (int i = 0; i < kUnroll; ++i) {
    RNNQC_UNROLL(4)
    for (int g = 0; g < kGates; ++g) {
      sum[i][g] = i > 0 || start == nullptr ? _mm512_setzero_si512() : _mm512_loadu_si512(start + g * 16);
    }
  }
  int64_t j = 0;
  for (; j + kUnroll <= depth; j += kUnroll) {
    RNNQC_UNROLL(4)
    for (int i = 0; i < kUnroll; ++i) {
      const __m512i codes = BroadcastCodes(a + i * kStep * 4);
      RNNQC_UNROLL(4)
      for (int g = 0; g < kGates; ++g) {
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
    for (int g = 0; g < kGates; ++g) AddProducts(&sum[0][g], codes, w + g);
    a += kStep * 4;
    w += kStep * kGates;
  }
  RNNQC_UNROLL(4)
  for (int g = 0; g < kGates; ++g) {
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
    const int64_t left = groups.depth - group * groups.size;
    const int64_t eights = left < groups.size ? left : groups.size;
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

using RowSumsFn = void(const MatmulArgs& m, int64_t block, const int32_t* start, int32_t* sums);

// The products of one order of the weights; a tile has one row only if there is no other, which `row` is for. Several
// rows read the lines of a block of int4 weights upwards in both orders.
struct Products {
  RowSumsFn* row;
  TileSumsFn* tile[kTileRows];
};

template <bool kDescending>
constexpr Products kProducts = {RowSums<kDescending>,
                                {nullptr, TileSums<2, kDescending>, TileSums<3, kDescending>, TileSums<4, kDescending>,
                                 TileSums<5, kDescending>, TileSums<6, kDescending>}};

template <bool kDescending>
constexpr Products kProductsS4 = {RowSumsS4<kDescending>,
                                  {nullptr, TileSumsS4<2>, TileSumsS4<3>, TileSumsS4<4>, TileSumsS4<5>, TileSumsS4<6>}};

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

// p of some rows and one block, from rows of sums without start values, which may stand where p goes to.
void FinishRows(const ProjectArgs& args, int64_t row, int64_t rows, int64_t block, const int32_t* sums) {
  const int64_t column = block * kBlockColumns;
  const int32_t* start = args.matmul.start + column;
  const int64_t p_stride = args.p_stride;
  float* p = args.p + row * p_stride + column;
  __m512 multiplier[4], bias[4];
  RNNQC_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
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
    for (int i = 0; i < 4; ++i) {
      const __m512i sum = _mm512_loadu_si512(sums + r * kBlockColumns + i * 16);
      const __m512i all =
          paired ? pairs.Add(i, sum, z)
                 : _mm512_add_epi32(sum, _mm512_mullo_epi32(_mm512_loadu_si512(start + i * 16), _mm512_set1_epi32(z)));
      const __m512 value = _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(all), scale), multiplier[i]);
      _mm512_storeu_ps(p + r * p_stride + i * 16, _mm512_add_ps(value, bias[i]));
    }
  }
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

void Recurrent(const RecurrentArgs& args, const Products& products) {
  const MatmulArgs& m = args.matmul;
  if (m.rows == 1) {
    ForEachBlock(m, [&](int64_t block) {
      products.row(m, block, m.start + block * kBlockColumns, args.acc + block * kBlockColumns);
    });
    return;
  }
  ForEachTile(m, [&](int64_t row, int64_t rows, int64_t block) {
    const int64_t column = block * kBlockColumns;
    int32_t* acc = args.acc + row * args.acc_stride + column;
    products.tile[rows - 1](m, row, block, m.start + column, acc, args.acc_stride);
  });
}

void Project(const ProjectArgs& args, const Products& products) {
  const MatmulArgs& m = args.matmul;
  alignas(kAlignment) int32_t sums[kTileRows * kBlockColumns];
  if (m.rows == 1) {
    ForEachBlock(m, [&](int64_t block) {
      products.row(m, block, nullptr, sums);
      FinishRows(args, 0, 1, block, sums);
    });
    return;
  }
  ForEachTile(m, [&](int64_t row, int64_t rows, int64_t block) {
    products.tile[rows - 1](m, row, block, nullptr, sums, kBlockColumns);
    FinishRows(args, row, rows, block, sums);
  });
}

#include "kernels/avx512vnni/linear.inc"

// x / scale, in less time than divisions take: x times the rounded reciprocal is at most 1.5 units of the last place
// off, one correction by the exact remainder leaves less than one, and the next one rounds as a division does
// (Markstein, Computation of elementary functions on the IBM RISC System/6000 processor, 1990, theorem 8.1). For
// quotients that codes may come of: others are limited before, to the same side of all codes; those below 2^-10 may be
// less exact, and are code 0. The limits of the scale keep remainders normal numbers.
class Quotients {
 public:
  explicit Quotients(float scale)
      : scale_(_mm512_set1_ps(scale)),
        reciprocal_(_mm512_set1_ps(1.0f / scale)),
        limit_(_mm512_set1_ps(scale * 0x1p20f)),
        divides_(!(scale >= 0x1p-60f && scale <= 0x1p60f)) {}

  // Without NaN.
  __m512 operator()(__m512 value) const {
    if (divides_) return _mm512_div_ps(value, scale_);
    const __m512 x = _mm512_max_ps(_mm512_min_ps(value, limit_), _mm512_sub_ps(_mm512_setzero_ps(), limit_));
    __m512 quotient = _mm512_mul_ps(x, reciprocal_);
    quotient = _mm512_fmadd_ps(_mm512_fnmadd_ps(quotient, scale_, x), reciprocal_, quotient);
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(quotient, scale_, x), reciprocal_, quotient);
  }

 private:
  __m512 scale_, reciprocal_, limit_;
  bool divides_;
};

// The float arithmetic of a cell's tables.
enum class Form {
  kLookUp,
  kLinear,
  kFused,  // linear in fewer operations: see IsFusedCell
};

template <Form kForm>
class Cells {
 public:
  explicit Cells(const TableCellArgs& args) : args_(args) {
    for (int g = 0; g < kGates; ++g) {
      min_[g] = _mm512_set1_ps(args.gate_min[g]);
      max_[g] = _mm512_set1_ps(args.gate_max[g]);
    }
    const float half = static_cast<float>(args.cell_table_size / 2);
    code_min_ = _mm512_set1_ps(-half);
    code_max_ = _mm512_set1_ps(half - 1.0f);
    cell_max_ = _mm512_set1_ps(args.cell_max);
    cell_min_ = _mm512_set1_ps(-args.cell_max);
    h_scale_ = _mm512_set1_ps(args.h_scale);
    h_upper_ = _mm512_set1_ps(args.h_reciprocal.upper);
    h_lower_ = _mm512_set1_ps(args.h_reciprocal.lower);
    h_zero_point_ = _mm512_set1_epi32(args.h_zero_point);
    h_min_ = _mm512_set1_ps(static_cast<float>(-args.h_zero_point));
    h_max_ = _mm512_set1_ps(static_cast<float>(255 - args.h_zero_point));
    if (kForm == Form::kLookUp) return;
    const LinearTables& linear = *args.linear;
    form_.Set(linear);
    for (int g = 0; g < kGates; ++g) {
      gate_entries_[g].Set(linear.gate_scale[g], linear.gate_offset[g], linear.gate_start[g]);
    }
    cell_entries_.Set(linear.cell_scale, 0.0f, linear.cell_start);
    gate_zero_ = Words(linear.gate_zero);
    gate_last_ = Words((kSegments << linear.gate_shift) - 1);
    gate_shift_ = Words(linear.gate_shift);
    gate_position_ = Words(16 - linear.gate_shift);
    cell_last_ = Words((kSegments << linear.cell_shift) - 1);
    cell_shift_ = Words(linear.cell_shift);
    cell_position_ = Words(16 - linear.cell_shift);
  }

  void Row(int64_t row) const {
    int64_t block = args_.block_begin;
    for (; block + 4 <= args_.block_end; block += 4) Blocks<4>(row, block);
    for (; block + 2 <= args_.block_end; block += 2) Blocks<2>(row, block);
    if (block < args_.block_end) Blocks<1>(row, block);
  }

 private:
  static __m512i Words(int64_t value) { return _mm512_set1_epi16(static_cast<int16_t>(value)); }

  __m512i GateIndex(int64_t row, int64_t block, int gate) const {
    const int64_t column = block * kBlockColumns + gate * kBlockUnits;
    const __m512 acc = _mm512_cvtepi32_ps(_mm512_loadu_si512(args_.acc + row * args_.acc_stride + column));
    const __m512 product = _mm512_mul_ps(acc, _mm512_loadu_ps(args_.h_multiplier + column));
    const __m512 v = _mm512_add_ps(product, _mm512_loadu_ps(args_.p + row * args_.p_stride + column));
    if (kForm == Form::kFused) return _mm512_cvttps_epi32(v);
    return _mm512_cvttps_epi32(_mm512_max_ps(_mm512_min_ps(v, max_[gate]), min_[gate]));
  }

  __m512i GateCodes(__m512i first, __m512i second) const {
    if (kForm == Form::kFused) return _mm512_subs_epi16(_mm512_packs_epi32(first, second), gate_zero_);
    // Indices up to 2^16 - 1 and the zero up to 2^15: codes fit into int16, modulo 2^16 as the subtraction goes.
    return _mm512_sub_epi16(_mm512_packus_epi32(first, second), gate_zero_);
  }

  // Gates `first` and `second`.
  void GatePair(int64_t row, int64_t block, int first, int second, __m512* gates) const {
    const __m512i a = GateIndex(row, block, first);
    const __m512i b = GateIndex(row, block, second);
    if (kForm != Form::kLookUp) {
      const __m512i t = form_(GateCodes(a, b), gate_last_, gate_shift_, gate_position_);
      gates[first] = gate_entries_[first].First(t);
      gates[second] = gate_entries_[second].Second(t);
    } else {
      gates[first] = _mm512_i32gather_ps(a, args_.gate_table[first], 4);
      gates[second] = _mm512_i32gather_ps(b, args_.gate_table[second], 4);
    }
  }

  __m512i CellCode(__m512 c) const {
    const __m512 upper = _mm512_min_ps(c, code_max_);
    return _mm512_cvttps_epi32(kForm == Form::kFused ? upper : _mm512_max_ps(upper, code_min_));
  }

  __m512 CellEntry(__m512i code) const {
    const __m512i size = _mm512_set1_epi32(args_.cell_table_size);
    const __m512i index = _mm512_mask_add_epi32(code, _mm512_movepi32_mask(code), code, size);
    return _mm512_i32gather_ps(index, args_.cell_table, 4);
  }

  __m512 NextCell(const __m512* gates, const float* c) const {
    const __m512 kept = _mm512_mul_ps(gates[2], _mm512_loadu_ps(c));
    const __m512 sum = _mm512_add_ps(kept, _mm512_mul_ps(gates[0], gates[3]));
    const __m512 limited = kForm == Form::kFused ? sum : _mm512_max_ps(_mm512_min_ps(sum, cell_max_), cell_min_);
    return _mm512_roundscale_ps(limited, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }

  void StoreOutput(int64_t row, int64_t block, __m512 y) const {
    const int64_t unit = block * kBlockUnits;
    const int64_t left = args_.units - unit;
    if (left >= kBlockUnits) {
      _mm512_storeu_ps(args_.y[row] + unit, y);
    } else {
      _mm512_mask_storeu_ps(args_.y[row] + unit, static_cast<__mmask16>((1u << left) - 1), y);
    }
  }

  uint8_t* HiddenCodes(int64_t row, int64_t block) const {
    return args_.h + row * args_.h_stride + block * kBlockUnits;
  }

  void StoreHidden(int64_t row, int64_t block, __m512 y) const {
    const __m512 limited = _mm512_max_ps(_mm512_min_ps(_mm512_div_ps(y, h_scale_), h_max_), h_min_);
    const __m512i h = _mm512_add_epi32(_mm512_cvtps_epi32(limited), h_zero_point_);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(HiddenCodes(row, block)), _mm512_cvtepi32_epi8(h));
  }

  // Four blocks of bounded codes: 64 bytes.
  void StoreHidden4(int64_t row, int64_t block, const __m512* y) const {
    __m512i code[4];
    RNNQC_UNROLL(4)
    for (int b = 0; b < 4; ++b) {
      code[b] = _mm512_cvtps_epi32(_mm512_fmadd_ps(y[b], h_upper_, _mm512_mul_ps(y[b], h_lower_)));
    }
    const __m512i zero_point = _mm512_packs_epi32(h_zero_point_, h_zero_point_);
    const __m512i low = _mm512_adds_epi16(_mm512_packs_epi32(code[0], code[1]), zero_point);
    const __m512i high = _mm512_adds_epi16(_mm512_packs_epi32(code[2], code[3]), zero_point);
    // Each 128 bits hold four codes of every block.
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(HiddenCodes(row, block), _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high)));
  }

  // Stage by stage: a stage of all blocks fills the wait for the results of the stage before.
  template <int kBlocks>
  void Blocks(int64_t row, int64_t block) const {
    __m512 gates[kBlocks][kGates];
    __m512i code[kBlocks];
    __m512 y[kBlocks];
    RNNQC_UNROLL(4)
    for (int b = 0; b < kBlocks; ++b) {
      GatePair(row, block + b, 0, 1, gates[b]);
      GatePair(row, block + b, 2, 3, gates[b]);
    }
    RNNQC_UNROLL(4)
    for (int b = 0; b < kBlocks; ++b) {
      float* c = args_.c + row * args_.c_stride + (block + b) * kBlockUnits;
      const __m512 next = NextCell(gates[b], c);
      _mm512_storeu_ps(c, next);
      code[b] = CellCode(next);
    }
    RNNQC_UNROLL(4)
    for (int b = 0; b < kBlocks; ++b) {
      if (kForm == Form::kLookUp) {
        y[b] = _mm512_mul_ps(gates[b][1], CellEntry(code[b]));
      } else if (b % 2 == 0) {
        const int other = b + 1 < kBlocks ? b + 1 : b;
        const __m512i t = form_(_mm512_packs_epi32(code[b], code[other]), cell_last_, cell_shift_, cell_position_);
        y[b] = _mm512_mul_ps(gates[b][1], cell_entries_.First(t));
        if (other != b) y[other] = _mm512_mul_ps(gates[other][1], cell_entries_.Second(t));
      }
    }
    RNNQC_UNROLL(4)
    for (int b = 0; b < kBlocks; ++b) StoreOutput(row, block + b, y[b]);
    if (kForm == Form::kFused && kBlocks == 4) {
      StoreHidden4(row, block, y);
    } else {
      RNNQC_UNROLL(4)
      for (int b = 0; b < kBlocks; ++b) StoreHidden(row, block + b, y[b]);
    }
  }

  const TableCellArgs& args_;
  LinearForm<kForm == Form::kFused> form_;
  LinearEntries<kForm == Form::kFused> gate_entries_[kGates], cell_entries_;
  __m512 min_[kGates], max_[kGates];
  __m512 code_min_, code_max_, cell_min_, cell_max_;
  __m512 h_scale_, h_upper_, h_lower_, h_min_, h_max_;
  __m512i h_zero_point_, gate_zero_, gate_last_, gate_shift_, gate_position_, cell_last_, cell_shift_, cell_position_;
};

template <Form kForm>
void AllRows(const TableCellArgs& args) {
  const Cells<kForm> cells(args);
  for (int64_t row = 0; row < args.rows; ++row) cells.Row(row);
}

// The grid of unsigned codes up to `largest`; NaN counts as 0.
class Grid {
 public:
  Grid(float scale, int32_t zero_point, int32_t largest)
      : quotients_(scale),
        min_(_mm512_set1_ps(static_cast<float>(-zero_point))),
        max_(_mm512_set1_ps(static_cast<float>(largest - zero_point))),
        zero_point_(_mm512_set1_epi32(zero_point)) {}

  __m512i operator()(__m512 x) const {
    const __m512 value = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x);
    const __m512 limited = _mm512_max_ps(_mm512_min_ps(quotients_(value), max_), min_);
    return _mm512_add_epi32(_mm512_cvtps_epi32(limited), zero_point_);
  }

 private:
  Quotients quotients_;
  __m512 min_, max_;
  __m512i zero_point_;
};

constexpr __mmask16 kAllLanes = 0xffff;

// visit(first element, lanes) for all vectors of n elements; only the last one may be partial.
template <typename Visit>
RNNQC_FORCEINLINE void ForEachVector(int64_t n, const Visit& visit) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) visit(i, kAllLanes);
  if (i < n) visit(i, static_cast<__mmask16>((1u << (n - i)) - 1));
}

}  // namespace

// The operand order of min and max below lets NaN yield to the second operand, and -0 to its +0.

float f32_max_abs__avx512vnni(const float* x, int64_t n) {
  __m512 largest = _mm512_setzero_ps();
  ForEachVector(n, [&](int64_t i, __mmask16 lanes) {
    largest = _mm512_max_ps(_mm512_abs_ps(_mm512_maskz_loadu_ps(lanes, x + i)), largest);
  });
  return _mm512_reduce_max_ps(largest);
}

MinMax f32_min_max__avx512vnni(const float* x, int64_t n) {
  __m512 least = _mm512_setzero_ps();
  __m512 largest = _mm512_setzero_ps();
  ForEachVector(n, [&](int64_t i, __mmask16 lanes) {
    const __m512 value = _mm512_maskz_loadu_ps(lanes, x + i);
    _mm_prefetch(reinterpret_cast<const char*>(x + i) + kInputPrefetchBytes, _MM_HINT_T0);
    least = _mm512_min_ps(value, least);
    largest = _mm512_max_ps(value, largest);
  });
  return {_mm512_reduce_min_ps(least), _mm512_reduce_max_ps(largest)};
}

void f32_u8_quantize_row__avx512vnni(const float* x, int64_t n, float scale, int32_t zero_point, uint8_t* codes) {
  const Grid grid(scale, zero_point, 255);
  ForEachVector(n, [&](int64_t i, __mmask16 lanes) {
    const __m512i code = grid(_mm512_maskz_loadu_ps(lanes, x + i));
    if (lanes == kAllLanes) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), _mm512_cvtepi32_epi8(code));
    } else {
      _mm512_mask_cvtepi32_storeu_epi8(codes + i, lanes, code);
    }
  });
}

void f32_u16_quantize_row__avx512vnni(const float* x, int64_t n, float scale, int32_t zero_point, uint8_t* high,
                                      uint8_t* low) {
  const Grid grid(scale, zero_point, 65535);
  ForEachVector(n, [&](int64_t i, __mmask16 lanes) {
    const __m512i code = grid(_mm512_maskz_loadu_ps(lanes, x + i));
    _mm512_mask_cvtepi32_storeu_epi8(high + i, lanes, _mm512_srli_epi32(code, 8));
    _mm512_mask_cvtepi32_storeu_epi8(low + i, lanes, code);
  });
}

void s32_f32_join__avx512vnni(const JoinArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    const int32_t* high = args.acc + 2 * row * args.acc_stride;
    const int32_t* low = high + args.acc_stride;
    const __m512i z_high = _mm512_set1_epi32(args.zero_point[2 * row]);
    const __m512i z_low = _mm512_set1_epi32(args.zero_point[2 * row + 1]);
    const float* bias = args.bias + row * args.bias_stride;
    float* p = args.p + row * args.p_stride;
    for (int64_t j = args.block_begin * kBlockColumns; j < args.block_end * kBlockColumns; j += 16) {
      const __m512i start = _mm512_loadu_si512(args.start + j);
      const __m512i high_sum = _mm512_add_epi32(_mm512_loadu_si512(high + j), _mm512_mullo_epi32(start, z_high));
      const __m512i low_sum = _mm512_add_epi32(_mm512_loadu_si512(low + j), _mm512_mullo_epi32(start, z_low));
      const __m512 upper = _mm512_mul_ps(_mm512_cvtepi32_ps(high_sum), _mm512_set1_ps(256.0f));
      __m512 value = _mm512_add_ps(upper, _mm512_cvtepi32_ps(low_sum));
      if (args.row_scale != nullptr) value = _mm512_mul_ps(value, _mm512_set1_ps(args.row_scale[row]));
      value = _mm512_mul_ps(value, _mm512_loadu_ps(args.multiplier + j));
      _mm512_storeu_ps(p + j, _mm512_add_ps(value, _mm512_loadu_ps(bias + j)));
    }
  }
}

void u8s8_s32_recurrent_6x64__avx512vnni(const RecurrentArgs& args) {
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
  Recurrent(args, args.matmul.descending ? kProductsS4<true> : kProductsS4<false>);
}

void u8s4_f32_project_6x64__avx512vnni(const ProjectArgs& args) {
  Project(args, args.matmul.descending ? kProductsS4<true> : kProductsS4<false>);
}

void s32_table_cell_32__avx512vnni(const TableCellArgs& args) {
  if (args.linear == nullptr) {
    AllRows<Form::kLookUp>(args);
  } else if (IsFusedCell(args)) {
    AllRows<Form::kFused>(args);
  } else {
    AllRows<Form::kLinear>(args);
  }
}

}  // namespace rnnqc
