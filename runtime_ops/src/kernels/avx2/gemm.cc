// AVX2 without FMA: eight units of one gate to a register.

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/common/codebooks.h"
#include "kernels/common/compiler.h"
#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

// Rows of a tile. Sixteen registers have room for the sums of three rows and two gates.
constexpr int kTileRows = 3;
constexpr int kRegisters = static_cast<int>(kBlockColumns / 8);
constexpr int64_t kPrefetchBytes = 2048;

inline __m256i LoadSums(const int32_t* sums) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums)); }
inline void StoreSums(int32_t* sums, __m256i value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums), value); }

inline int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

inline __m256i Sixteen(const uint8_t* bytes) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
}

inline __m256i Broadcast(const uint8_t* four_bytes) {
  int32_t four;
  std::memcpy(&four, four_bytes, sizeof(four));
  return _mm256_set1_epi32(four);
}

// The byte product multiplies an unsigned by a signed operand and adds pairs of products, with saturation, in int16.
// It is exact for the following form of a code a,
//
//   mask = a < 128 ? -1 : 0      size = |a - 128|, 0 .. 128
//
// as (a - 128) * w = size * (w ^ mask) + (size & mask), w ^ -1 being -w - 1, and two products size * (w ^ mask) add up
// to -2 * 128 * 128 .. 2 * 128 * 127. The packed column sums make up for a - 128 instead of a.
class Panel {
 public:
  static constexpr int64_t kRows = 16;

  // The number of codes of each row that are prepared at once.
  static int64_t Depth(int64_t rows) { return kCodes / rows / 32 * 32; }

  // Prepares codes [begin, begin + depth) of rows [row, row + rows).
  void Prepare(const MatmulArgs& m, int64_t row, int64_t rows, int64_t begin, int64_t depth) {
    stride_ = RoundUp(2 * depth, kAlignment);
    for (int64_t r = 0; r < rows; ++r) {
      added_[r] = PrepareRow(m.a + (row + r) * m.a_stride + begin, depth, bytes_ + r * stride_);
    }
  }

  // Four sizes, then their four masks, and so on.
  const uint8_t* row(int64_t r) const { return bytes_ + r * stride_; }
  int64_t stride() const { return stride_; }
  // Sum over the row's codes of size & mask.
  const int32_t* added(int64_t r) const { return added_ + r; }

 private:
  static constexpr int64_t kCodes = 8192;

  static int32_t PrepareRow(const uint8_t* codes, int64_t depth, uint8_t* bytes) {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i middle = _mm256_set1_epi8(-128);
    __m256i added = zero;
    int64_t k = 0;
    for (; k + 32 <= depth; k += 32) {
      const __m256i loaded = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + k));
      const __m256i centred = _mm256_xor_si256(loaded, middle);
      const __m256i size = _mm256_abs_epi8(centred);
      const __m256i mask = _mm256_cmpgt_epi8(zero, centred);
      added = _mm256_add_epi64(added, _mm256_sad_epu8(_mm256_and_si256(size, mask), zero));
      const __m256i even = _mm256_unpacklo_epi32(size, mask);
      const __m256i odd = _mm256_unpackhi_epi32(size, mask);
      __m256i* to = reinterpret_cast<__m256i*>(bytes + 2 * k);
      _mm256_store_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
      _mm256_store_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    }
    int64_t lanes[4];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), added);
    int64_t sum = lanes[0] + lanes[1] + lanes[2] + lanes[3];
    for (; k < depth; k += 4) {
      int32_t four;
      std::memcpy(&four, codes + k, sizeof(four));
      const __m128i centred = _mm_xor_si128(_mm_cvtsi32_si128(four), _mm_cvtsi32_si128(INT32_C(-0x7f7f7f80)));
      const __m128i size = _mm_abs_epi8(centred);
      const __m128i mask = _mm_cmpgt_epi8(_mm_setzero_si128(), centred);
      sum += _mm_cvtsi128_si32(_mm_sad_epu8(_mm_and_si128(size, mask), _mm_setzero_si128()));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(bytes + 2 * k), _mm_unpacklo_epi32(size, mask));
    }
    return static_cast<int32_t>(sum);
  }

  int64_t stride_ = 0;
  int32_t added_[kRows];
  alignas(kAlignment) uint8_t bytes_[2 * kCodes];
};

// Adds the products of prepared codes and of the weights of one block to `base`.
struct Tile {
  const uint8_t* codes;
  int64_t codes_stride;
  int64_t groups;  // of four k
  const int32_t* added;
  const __m256i* weights;  // of the first group
  const int32_t* base;
  int64_t base_stride;
  int32_t* sums;
  int64_t sums_stride;
};

using SumsFn = void(const Tile& tile);

template <int kRows, int kPart, bool kDescending = false>
RNNQC_NOINLINE void TileSums(const Tile& shared) {
  const Tile tile = shared;  // which no store can change
  constexpr int64_t kStep = kDescending ? -1 : 1;
  const __m256i ones = _mm256_set1_epi16(1);
  const int64_t first = kDescending ? tile.groups - 1 : 0;
  for (int part = 0; part < kRegisters; part += kPart) {
    const uint8_t* codes = tile.codes + 8 * first;
    const __m256i* w = tile.weights + first * kRegisters + part;
    __m256i sum[kRows][kPart];
    RNNQC_UNROLL(3)
    for (int r = 0; r < kRows; ++r) {
      const __m256i added = _mm256_set1_epi32(tile.added[r]);
      RNNQC_UNROLL(8)
      for (int i = 0; i < kPart; ++i) {
        sum[r][i] = _mm256_add_epi32(added, LoadSums(tile.base + r * tile.base_stride + (part + i) * 8));
      }
    }
    for (int64_t j = 0; j < tile.groups; ++j) {
      RNNQC_UNROLL(3)
      for (int r = 0; r < kRows; ++r) {
        const __m256i size = Broadcast(codes + r * tile.codes_stride);
        const __m256i mask = Broadcast(codes + r * tile.codes_stride + 4);
        RNNQC_UNROLL(8)
        for (int i = 0; i < kPart; ++i) {
          if (r == 0 && i % 2 == 0) {
            _mm_prefetch(reinterpret_cast<const char*>(w + i) + kStep * kPrefetchBytes, _MM_HINT_T0);
          }
          const __m256i pairs = _mm256_maddubs_epi16(size, _mm256_xor_si256(mask, _mm256_load_si256(w + i)));
          sum[r][i] = _mm256_add_epi32(sum[r][i], _mm256_madd_epi16(pairs, ones));
        }
      }
      codes += kStep * 8;
      w += kStep * kRegisters;
    }
    RNNQC_UNROLL(3)
    for (int r = 0; r < kRows; ++r) {
      RNNQC_UNROLL(8)
      for (int i = 0; i < kPart; ++i) StoreSums(tile.sums + r * tile.sums_stride + (part + i) * 8, sum[r][i]);
    }
  }
}

// Several rows read the lines of a block upwards in both orders of blocks: they take parts of lines, which come more
// slowly downwards from far caches.
template <bool kDescending>
constexpr SumsFn* kTileSums[kTileRows] = {TileSums<1, 8, kDescending>, TileSums<2, 4>, TileSums<3, 4>};

// Products of int4 weights need neither sizes nor masks: two of them are -2 * 8 * 255 .. 2 * 7 * 255, and the sums of
// those of kEights times eight k, -32640 .. 28560, fit into int16.
constexpr int64_t kEights = 4;
static_assert(kEights * 8 == kGroupDepth, "a group has a whole number of such sums");
constexpr int kTileRowsS4 = 4;

// One row takes the numbers plus 8, which spares the extension of their signs: a * w = a * (w + 8) - 8 * a. Two such
// products are at most 2 * 15 * 255. Sums that start from the -8 * a end as above, however they overflow before.
// Several rows share the extension, which costs less than their sums of -8 * a.
enum class Signs { kExtended, kPlusEight };

template <Signs kSigns>
struct Numbers {
  __m256i lower;
  __m256i upper;

  explicit Numbers(__m256i bytes) {
    const __m256i half = _mm256_set1_epi8(15);
    if (kSigns == Signs::kPlusEight) bytes = _mm256_xor_si256(bytes, _mm256_set1_epi8(static_cast<char>(0x88)));
    lower = _mm256_and_si256(bytes, half);
    upper = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), half);
    if (kSigns == Signs::kPlusEight) return;
    const __m256i extended =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1));
    lower = _mm256_shuffle_epi8(extended, lower);
    upper = _mm256_shuffle_epi8(extended, upper);
  }
};

// The sums of -8 * a of `eights` times eight codes: over k and k + 1 where k % 4 = 0 in every even word, over the
// others in every odd one.
inline __m256i Offsets(const uint8_t* codes, int64_t eights) {
  __m256i loaded;
  if (eights == kEights) {
    loaded = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
  } else {
    alignas(32) uint8_t some[8 * kEights] = {};
    std::memcpy(some, codes, static_cast<size_t>(8 * eights));
    loaded = _mm256_load_si256(reinterpret_cast<const __m256i*>(some));
  }
  const __m256i pairs = _mm256_maddubs_epi16(loaded, _mm256_set1_epi8(-8));
  __m128i sums = _mm_add_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  sums = _mm_add_epi16(sums, _mm_shuffle_epi32(sums, 0x4e));
  return _mm256_broadcastd_epi32(_mm_add_epi16(sums, _mm_shuffle_epi32(sums, 0xb1)));
}

// Pairs of int16: the multipliers of eight columns, twice each, or ones.
RNNQC_FORCEINLINE __m256i Multipliers(const uint8_t* multipliers) {
  if (multipliers == nullptr) return _mm256_set1_epi16(1);
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(multipliers));
  const __m256i once = _mm256_cvtepu8_epi32(bytes);
  return _mm256_or_si256(once, _mm256_slli_epi32(once, 16));
}

using SumsS4Fn = void(const MatmulArgs& m, int64_t row, int64_t block, const int32_t* start, int32_t* sums,
                      int64_t sums_stride);

// Sums of kRows rows and one block of int4 weights, kPart registers of eight columns at a time, from `start` or 0 if
// that is null.
template <int kRows, int kPart, bool kDescending = false>
RNNQC_NOINLINE void TileSumsS4(const MatmulArgs& m, int64_t row, int64_t block, const int32_t* start, int32_t* sums,
                               int64_t sums_stride) {
  constexpr int64_t kStep = kDescending ? -1 : 1;
  constexpr Signs kSigns = kRows == 1 ? Signs::kPlusEight : Signs::kExtended;
  const int64_t depth = m.k_padded / 8;
  const int64_t count = (depth + kEights - 1) / kEights;
  const int64_t a_stride = m.a_stride;
  const int64_t first = kDescending ? depth - 1 : 0;
  const uint8_t* a = m.a + row * a_stride + 8 * first;
  const __m256i* w = static_cast<const __m256i*>(m.weights) + (block * depth + first) * kRegisters;
  // The multipliers of the group, and how many sums of kEights eights are left in it.
  const int64_t group_size = m.multipliers == nullptr ? count : m.group_size / kGroupDepth;
  const int64_t groups = count == 0 ? 0 : (count + group_size - 1) / group_size;
  const uint8_t* group = m.multipliers;
  if (group != nullptr) group += (block * groups + (kDescending ? groups - 1 : 0)) * kBlockColumns;
  int64_t left = kDescending ? count - (groups - 1) * group_size : group_size;
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kRegisters; ++i) {
      StoreSums(sums + r * sums_stride + i * 8, start == nullptr ? _mm256_setzero_si256() : LoadSums(start + i * 8));
    }
  }
  for (int64_t n = 0; n < count; ++n) {
    const int64_t part_of_k = kDescending ? count - 1 - n : n;
    const int64_t eights = Least(kEights, depth - part_of_k * kEights);
    const uint8_t* lowest = kDescending ? a - 8 * (eights - 1) : a;
    const __m256i offset = kSigns == Signs::kPlusEight ? Offsets(lowest, eights) : _mm256_setzero_si256();
    for (int part = 0; part < kRegisters; part += kPart) {
      const uint8_t* codes = a;
      const __m256i* weights = w + part;
      __m256i sum[kRows][kPart];
      RNNQC_UNROLL(4)
      for (int r = 0; r < kRows; ++r) {
        RNNQC_UNROLL(8)
        for (int i = 0; i < kPart; ++i) sum[r][i] = offset;
      }
      for (int64_t j = 0; j < eights; ++j) {
        __m256i lower[kRows];
        __m256i upper[kRows];
        RNNQC_UNROLL(4)
        for (int r = 0; r < kRows; ++r) {
          lower[r] = Broadcast(codes + r * a_stride);
          upper[r] = Broadcast(codes + r * a_stride + 4);
        }
        RNNQC_UNROLL(8)
        for (int i = 0; i < kPart; ++i) {
          if (kRows == 1 && i % 2 == 0) {
            _mm_prefetch(reinterpret_cast<const char*>(weights + i) + kStep * kPrefetchBytes, _MM_HINT_T0);
          }
          const Numbers<kSigns> numbers(_mm256_load_si256(weights + i));
          RNNQC_UNROLL(4)
          for (int r = 0; r < kRows; ++r) {
            const __m256i products = _mm256_add_epi16(_mm256_maddubs_epi16(lower[r], numbers.lower),
                                                      _mm256_maddubs_epi16(upper[r], numbers.upper));
            sum[r][i] = _mm256_add_epi16(sum[r][i], products);
          }
        }
        codes += kStep * 8;
        weights += kStep * kRegisters;
      }
      RNNQC_UNROLL(8)
      for (int i = 0; i < kPart; ++i) {
        const __m256i factors = Multipliers(group == nullptr ? nullptr : group + (part + i) * 8);
        RNNQC_UNROLL(4)
        for (int r = 0; r < kRows; ++r) {
          int32_t* to = sums + r * sums_stride + (part + i) * 8;
          StoreSums(to, _mm256_add_epi32(LoadSums(to), _mm256_madd_epi16(sum[r][i], factors)));
        }
      }
    }
    a += kStep * eights * 8;
    w += kStep * eights * kRegisters;
    if (--left > 0) continue;
    left = group_size;
    if (group != nullptr) group += kStep * kBlockColumns;
  }
}

template <bool kDescending>
constexpr SumsS4Fn* kTileSumsS4[kTileRowsS4] = {TileSumsS4<1, 8, kDescending>, TileSumsS4<2, 4>, TileSumsS4<3, 2>,
                                                TileSumsS4<4, 2>};

#include "kernels/avx2/products_sets.inc"

// Rows of the next tile, so that the remaining tiles are about equal.
inline int64_t NextTile(int64_t rows_left, int64_t tile_rows) {
  const int64_t tiles = (rows_left + tile_rows - 1) / tile_rows;
  return (rows_left + tiles - 1) / tiles;
}

// All sums, from `start` if kStart, else from 0. finish(row, rows, block) is called for sums that are complete.
template <bool kStart, typename Finish>
inline void Sums(const MatmulArgs& m, int32_t* sums, int64_t sums_stride, const Finish& finish) {
  SumsFn* const* tile_sums = m.descending ? kTileSums<true> : kTileSums<false>;
  const int64_t block_bytes = kBlockColumns * m.k_padded + kColumnSumBytes;
  Panel panel;
  alignas(kAlignment) int32_t base[kBlockColumns];
  for (int64_t row = 0; row < m.rows; row += Panel::kRows) {
    const int64_t rows = Least(Panel::kRows, m.rows - row);
    int64_t begin = 0;
    int64_t depth = 0;
    do {
      depth = Least(Panel::Depth(rows), m.k_padded - begin);
      panel.Prepare(m, row, rows, begin, depth);
      for (int64_t i = m.block_begin; i < m.block_end; ++i) {
        const int64_t block = m.descending ? m.block_begin + m.block_end - 1 - i : i;
        const int64_t column = block * kBlockColumns;
        const uint8_t* packed = static_cast<const uint8_t*>(m.weights) + block * block_bytes;
        const int32_t* column_sums = reinterpret_cast<const int32_t*>(packed);
        if (kStart && begin == 0) {
          for (int64_t j = 0; j < kBlockColumns; j += 8) {
            StoreSums(base + j, _mm256_add_epi32(LoadSums(column_sums + j), LoadSums(m.start + column + j)));
          }
        }
        int64_t tile_rows = 0;
        for (int64_t r = 0; r < rows; r += tile_rows) {
          tile_rows = NextTile(rows - r, kTileRows);
          Tile tile{};
          tile.codes = panel.row(r);
          tile.codes_stride = panel.stride();
          tile.groups = depth / 4;
          tile.added = panel.added(r);
          tile.weights = reinterpret_cast<const __m256i*>(packed + kColumnSumBytes + begin * kBlockColumns);
          tile.sums = sums + (row + r) * sums_stride + column;
          tile.sums_stride = sums_stride;
          tile.base = begin > 0 ? tile.sums : kStart ? base : column_sums;
          tile.base_stride = begin > 0 ? sums_stride : 0;
          tile_sums[tile_rows - 1](tile);
          if (begin + depth == m.k_padded) finish(row + r, tile_rows, block);
        }
      }
      begin += depth;
    } while (begin < m.k_padded);
  }
}

// The same for int4 weights, even or uneven; of tiles of 1 .. kMost rows.
template <int kMost, typename Finish>
inline void SumsS4(SumsS4Fn* const* tile_sums, const MatmulArgs& m, const int32_t* start, int32_t* sums,
                   int64_t sums_stride, const Finish& finish) {
  for (int64_t i = m.block_begin; i < m.block_end; ++i) {
    const int64_t block = m.descending ? m.block_begin + m.block_end - 1 - i : i;
    const int64_t column = block * kBlockColumns;
    for (int64_t row = 0; row < m.rows;) {
      const int64_t tile = NextTile(m.rows - row, kMost);
      tile_sums[tile - 1](m, row, block, start == nullptr ? nullptr : start + column, sums + row * sums_stride + column,
                          sums_stride);
      finish(row, tile, block);
      row += tile;
    }
  }
}

// p of some rows and one block, from their sums without start values, which stand there.
template <bool kRowGrids>
RNNQC_NOINLINE void Finish(const ProjectArgs& args, int64_t row, int64_t rows, int64_t block) {
  const int64_t column = block * kBlockColumns;
  const int32_t* start = args.matmul.start + column;
  const float* multiplier = args.multiplier + column;
  const float* bias = args.bias + column;
  const int64_t stride = args.p_stride;
  float* first = args.p + row * stride + column;
  for (int64_t i = 0; i < kBlockColumns; i += 8) {
    const __m256i starts = LoadSums(start + i);
    const __m256 multipliers = _mm256_loadu_ps(multiplier + i);
    const __m256 biases = _mm256_loadu_ps(bias + i);
    for (int64_t r = 0; r < rows; ++r) {
      float* p = first + r * stride + i;
      const __m256i sums = _mm256_castps_si256(_mm256_loadu_ps(p));
      __m256 value;
      if (kRowGrids) {
        const __m256i all =
            _mm256_add_epi32(_mm256_mullo_epi32(starts, _mm256_set1_epi32(args.row_zero_point[row + r])), sums);
        value = _mm256_mul_ps(_mm256_cvtepi32_ps(all), _mm256_set1_ps(args.row_scale[row + r]));
      } else {
        value = _mm256_cvtepi32_ps(_mm256_add_epi32(starts, sums));
      }
      _mm256_storeu_ps(p, _mm256_add_ps(_mm256_mul_ps(value, multipliers), biases));
    }
  }
}

template <int kMost>
void RecurrentS4(SumsS4Fn* const* tile_sums, const RecurrentArgs& args) {
  SumsS4<kMost>(tile_sums, args.matmul, args.matmul.start, args.acc, args.acc_stride, [](int64_t, int64_t, int64_t) {});
}

template <int kMost>
void ProjectS4(SumsS4Fn* const* tile_sums, const ProjectArgs& args) {
  SumsS4<kMost>(tile_sums, args.matmul, nullptr, reinterpret_cast<int32_t*>(args.p), args.p_stride,
                [&args](int64_t row, int64_t rows, int64_t block) {
                  (args.row_scale != nullptr ? Finish<true> : Finish<false>)(args, row, rows, block);
                });
}

}  // namespace

void u8s8_s32_recurrent_3x64__avx2(const RecurrentArgs& args) {
  Sums<true>(args.matmul, args.acc, args.acc_stride, [](int64_t, int64_t, int64_t) {});
}

void u8s8_f32_project_3x64__avx2(const ProjectArgs& args) {
  // The memory of the results holds the integer sums first.
  Sums<false>(args.matmul, reinterpret_cast<int32_t*>(args.p), args.p_stride,
              [&args](int64_t row, int64_t rows, int64_t block) {
                (args.row_scale != nullptr ? Finish<true> : Finish<false>)(args, row, rows, block);
              });
}

void u8s4_s32_recurrent_4x64__avx2(const RecurrentArgs& args) {
  RecurrentS4<kTileRowsS4>(args.matmul.descending ? kTileSumsS4<true> : kTileSumsS4<false>, args);
}

void u8s4_f32_project_4x64__avx2(const ProjectArgs& args) {
  ProjectS4<kTileRowsS4>(args.matmul.descending ? kTileSumsS4<true> : kTileSumsS4<false>, args);
}

void u8s4_s32_recurrent_sets_4x64__avx2(const RecurrentArgs& args) { RecurrentS4<kTileRowsSets>(kTileSumsSets, args); }

void u8s4_f32_project_sets_4x64__avx2(const ProjectArgs& args) { ProjectS4<kTileRowsSets>(kTileSumsSets, args); }

}  // namespace rnnqc
