// AMX-INT8, on processors that have GFNI and AVX-512 VBMI, too: products of several rows in tiles of 16 rows of 64
// bytes. The weights that AVX512-VNNI packs are tiles already: lines of 64 bytes that hold four k of 16 columns.
//
// Products of one row are those of AVX512-VNNI in another form: these processors fetch weights faster without prefetch
// instructions.

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/common/codebooks.h"
#include "kernels/common/compiler.h"
#include "kernels/common/finish_projection.h"
#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

#include "kernels/avx512vnni/dot.inc"
#include "kernels/avx512vnni/one_row.inc"

constexpr int64_t kLine = 64;  // bytes: four k of 16 columns
constexpr int64_t kLines = kBlockColumns / 16;
constexpr int64_t kTileRows = 16;
constexpr int64_t kTileBytes = 64;
constexpr int64_t kMostRows = 2 * kTileRows;  // of a tile or a pair of tiles

// A byte's bits times a matrix of bits, and then other signs where `flips` has ones.
template <uint64_t kMatrix, int kFlips = 0>
__m512i TimesBits(__m512i bytes) {
  return _mm512_gf2p8affine_epi64_epi8(bytes, _mm512_set1_epi64(kMatrix), kFlips);
}

// Indices 0 .. 15, each in the four bytes of its column.
inline __m512i FourOfEach() {
  return _mm512_set_epi32(0x0f0f0f0f, 0x0e0e0e0e, 0x0d0d0d0d, 0x0c0c0c0c, 0x0b0b0b0b, 0x0a0a0a0a, 0x09090909,
                          0x08080808, 0x07070707, 0x06060606, 0x05050505, 0x04040404, 0x03030303, 0x02020202,
                          0x01010101, 0x00000000);
}

// The block that a call takes at i of [block_begin, block_end).
inline int64_t BlockAt(const MatmulArgs& m, int64_t i) {
  return m.descending ? m.block_begin + m.block_end - 1 - i : i;
}

// The numbers of four k of a block as four lines of int8, from the lines that hold them. `columns` are the bytes of the
// block's columns of a group, or null.
struct LinesS4 {  // kS4Pairs
  static constexpr int kCount = kPairs;

  explicit LinesS4(const uint8_t* /*columns*/) {}

  void Unpack(const __m512i* lines, __m512i* weights) const {
    RNNQC_UNROLL(2)
    for (int line = 0; line < kCount; ++line) {
      // The lower half less 8, and the upper half.
      weights[2 * line] = TimesBits<0x0102040808080808, 0xf8>(lines[line]);
      weights[2 * line + 1] = TimesBits<0x1020408080808080>(lines[line]);
    }
  }
};

#include "kernels/amxint8/products_sets.inc"

struct LinesOfPlaces {  // kS4Places
  static constexpr int kCount = kPairs;

  explicit LinesOfPlaces(const uint8_t* columns) : places(columns) {}

  void Unpack(const __m512i* lines, __m512i* weights) const {
    RNNQC_UNROLL(2)
    for (int line = 0; line < kCount; ++line) {
      places.LookUp(2 * line, lines[line], &weights[2 * line], &weights[2 * line + 1]);
    }
  }

  Places places;
};

// --- One row ---

// Weights that are mostly in the first-level cache are multiplied two blocks at once, which share the row's codes. From
// farther away one stream comes faster than two, by up to 5 %.
constexpr int64_t kNearWeights = 1 << 17;

void Row(const MatmulArgs& m, const int32_t* start, int32_t* sums) {
  Weights(m) <= kNearWeights ? RowOfBlocks<2>(m, start, sums) : RowOfBlocks<1>(m, start, sums);
}

void RowS4(const MatmulArgs& m, const int32_t* start, int32_t* sums) {
  const CodeSums code_sums(m);
  for (int64_t i = m.block_begin; i < m.block_end; ++i) {
    const int64_t block = BlockAt(m, i);
    const int64_t column = block * kBlockColumns;
    (m.descending ? RowSumsS4<true> : RowSumsS4<false>)(m, code_sums.data(), block,
                                                        start == nullptr ? nullptr : start + column, sums + column);
  }
}

// The memory of the results holds the integer sums first.
void ProjectRow(const ProjectArgs& args, void (*row)(const MatmulArgs&, const int32_t* start, int32_t* sums)) {
  const MatmulArgs& m = args.matmul;
  int32_t* sums = reinterpret_cast<int32_t*>(args.p);
  row(m, nullptr, sums);
  for (int64_t block = m.block_begin; block < m.block_end; ++block) {
    s32_f32_finish_projection__avx512vnni(args, 0, 1, block, sums + block * kBlockColumns);
  }
}

// --- Tiles ---

// Products that vpdpbusd is faster at: few rows, more of them if weights are unpacked first, and so small ones that
// setting up the tiles takes longer.
constexpr int64_t kFewRows = 3;
constexpr int64_t kFewRowsOfFewBits = 5;
constexpr int64_t kFewProducts = 1 << 18;

bool IsFew(const MatmulArgs& m, int64_t few_rows) { return m.rows < few_rows || m.rows * Weights(m) < kFewProducts; }

// Compilers do not know that tile instructions read memory.
RNNQC_FORCEINLINE void CompleteStores() { __asm__ volatile("" ::: "memory"); }

// The rows of a call, in one tile or in pairs of tiles, all of one size. The last ones may begin before the others end:
// what belongs to two of them is computed twice.
class RowTiles {
 public:
  explicit RowTiles(int64_t rows)
      : rows_(rows),
        count_(rows <= kTileRows ? 1 : (rows + kMostRows - 1) / kMostRows * 2),
        size_((rows + count_ - 1) / count_) {}

  int64_t count() const { return count_; }
  int64_t size() const { return size_; }
  int64_t begin(int64_t tile) const { return tile * size_ + size_ <= rows_ ? tile * size_ : rows_ - size_; }

 private:
  const int64_t rows_, count_, size_;
};

// Some k, in tiles. The remainder is one more tile, which ends where k ends; its codes that belong to the tile before
// are replaced by 0. All of them have one size, that of the first.
struct Depth {
  Depth(int64_t k, int64_t tile_bytes) : tile(tile_bytes), whole(k / tile), rest(k % tile), last(k - tile) {}

  const int64_t tile, whole, rest, last;
};

int64_t TileDepth(int64_t k) { return k < kTileBytes ? k : kTileBytes; }

// Tiles 0 to 3 hold sums; 4, or 4 and 5, codes; the others weights.
class Tiles {
 public:
  Tiles(const RowTiles& rows, int64_t depth) {
    struct alignas(64) Config {
      uint8_t palette = 1;
      uint8_t start_row = 0;
      uint8_t reserved[14] = {};
      uint16_t bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    const int weights = rows.count() == 1 ? 5 : 6;
    for (int tile = 0; tile < 8; ++tile) {
      config.rows[tile] = static_cast<uint8_t>(tile < weights ? rows.size() : depth / 4);
      config.bytes[tile] = static_cast<uint16_t>(tile < 4 || tile >= weights ? kTileBytes : depth);
    }
    CompleteStores();
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// Codes, and the weights of one block in lines, of which the first `columns` columns count.
struct Operands {
  const uint8_t* a;
  int64_t a_stride;
  const uint8_t* weights;
  Depth depth;
  int64_t columns;
};

// The codes of the last tile of k.
struct Rest {
  Rest(const Operands& x, int64_t rows) {
    if (x.depth.rest == 0) return;
    const __mmask64 kept = ~uint64_t{0} << (x.depth.tile - x.depth.rest);
    for (int64_t r = 0; r < rows; ++r) {
      const uint8_t* from = x.a + r * x.a_stride + x.depth.last;
      _mm512_store_si512(codes + r * kTileBytes, _mm512_maskz_loadu_epi8(kept, from));
    }
    CompleteStores();
  }

  alignas(kAlignment) uint8_t codes[kTileRows * kTileBytes];
};

// The initial sums of a block: the same values for all rows, or 0 if `start` is null; or the contents of `sums`.
struct First {
  const int32_t* start;
  bool continues;
};

constexpr int64_t kSumBytes = sizeof(int32_t);

// Tile numbers are parts of the instructions.
#define RNNQC_FIRST_SUMS(tile, column, first, sums, sums_stride)       \
  do {                                                                 \
    if ((first).continues) {                                           \
      _tile_loadd(tile, (sums) + (column), (sums_stride) * kSumBytes); \
    } else if ((first).start != nullptr) {                             \
      _tile_loadd(tile, (first).start + (column), 0);                  \
    } else {                                                           \
      _tile_zero(tile);                                                \
    }                                                                  \
  } while (false)

// Sums of one tile of rows and one block.
void SumsOfOne(const Operands& x, const RowTiles& rows, const First& first, int32_t* sums, int64_t sums_stride) {
  const auto step = [](const uint8_t* codes, int64_t stride, const uint8_t* weights) {
    _tile_loadd(4, codes, stride);
    _tile_loadd(5, weights, kLines * kLine);
    _tile_dpbusd(0, 4, 5);
    _tile_loadd(6, weights + kLine, kLines * kLine);
    _tile_dpbusd(1, 4, 6);
    _tile_loadd(7, weights + 2 * kLine, kLines * kLine);
    _tile_dpbusd(2, 4, 7);
    _tile_loadd(5, weights + 3 * kLine, kLines * kLine);
    _tile_dpbusd(3, 4, 5);
  };
  RNNQC_FIRST_SUMS(0, 0, first, sums, sums_stride);
  RNNQC_FIRST_SUMS(1, 16, first, sums, sums_stride);
  RNNQC_FIRST_SUMS(2, 32, first, sums, sums_stride);
  RNNQC_FIRST_SUMS(3, 48, first, sums, sums_stride);
  const Depth& depth = x.depth;
  for (int64_t i = 0; i < depth.whole; ++i) {
    step(x.a + i * depth.tile, x.a_stride, x.weights + i * depth.tile * kBlockColumns);
  }
  if (depth.rest > 0) {
    const Rest rest(x, rows.size());
    step(rest.codes, kTileBytes, x.weights + depth.last * kBlockColumns);
  }
  _tile_stored(0, sums, sums_stride * kSumBytes);
  _tile_stored(1, sums + 16, sums_stride * kSumBytes);
  _tile_stored(2, sums + 32, sums_stride * kSumBytes);
  _tile_stored(3, sums + 48, sums_stride * kSumBytes);
}

// Sums of two tiles of rows, `distance` rows apart, and one block.
void SumsOfPair(const Operands& x, const RowTiles& rows, int64_t distance, const First& first, int32_t* sums,
                int64_t sums_stride) {
  const auto step = [](const uint8_t* codes0, const uint8_t* codes1, int64_t stride, const uint8_t* weights) {
    _tile_loadd(6, weights, kLines * kLine);
    _tile_loadd(4, codes0, stride);
    _tile_dpbusd(0, 4, 6);
    _tile_loadd(7, weights + kLine, kLines * kLine);
    _tile_dpbusd(1, 4, 7);
    _tile_loadd(5, codes1, stride);
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
  };
  const Operands y{x.a + distance * x.a_stride, x.a_stride, x.weights, x.depth, x.columns};
  const Depth& depth = x.depth;
  const Rest rest0(x, rows.size());
  const Rest rest1(y, rows.size());
  int32_t* sums1 = sums + distance * sums_stride;
  for (int64_t column = 0; column < x.columns; column += 32) {
    const uint8_t* w = x.weights + column * 4;
    RNNQC_FIRST_SUMS(0, column, first, sums, sums_stride);
    RNNQC_FIRST_SUMS(1, column + 16, first, sums, sums_stride);
    RNNQC_FIRST_SUMS(2, column, first, sums1, sums_stride);
    RNNQC_FIRST_SUMS(3, column + 16, first, sums1, sums_stride);
    for (int64_t i = 0; i < depth.whole; ++i) {
      step(x.a + i * depth.tile, y.a + i * depth.tile, x.a_stride, w + i * depth.tile * kBlockColumns);
    }
    if (depth.rest > 0) step(rest0.codes, rest1.codes, kTileBytes, w + depth.last * kBlockColumns);
    _tile_stored(0, sums + column, sums_stride * kSumBytes);
    _tile_stored(1, sums + column + 16, sums_stride * kSumBytes);
    _tile_stored(2, sums1 + column, sums_stride * kSumBytes);
    _tile_stored(3, sums1 + column + 16, sums_stride * kSumBytes);
  }
}

#undef RNNQC_FIRST_SUMS

// Sums of the tile or the pair of tiles of rows that begins with `tile`. Tiles of one pair that overlap may continue,
// because both are loaded before one is stored; pairs that overlap may not, unless one ends before the other begins.
void SumsOfTiles(const Operands& x, const RowTiles& rows, int64_t tile, const First& first, int32_t* sums,
                 int64_t sums_stride) {
  if (rows.count() == 1) return SumsOfOne(x, rows, first, sums, sums_stride);
  SumsOfPair(x, rows, rows.begin(tile + 1) - rows.begin(tile), first, sums, sums_stride);
}

int64_t RowsOfTiles(const RowTiles& rows, int64_t tile) {
  return rows.count() == 1 ? rows.size() : rows.begin(tile + 1) + rows.size() - rows.begin(tile);
}

// Weights of few bits of some k of a block as lines of int8 ones.
class Panel {
 public:
  static constexpr int64_t kMostDepth = 256;

  Panel() { std::memset(memory_, 0, kBefore); }

  // The lines of the panel follow a tile's number of unused lines: see Depth.
  const uint8_t* lines() const { return memory_ + kBefore; }

  template <typename Lines>
  void Unpack(const MatmulArgs& m, int64_t block, int64_t begin, int64_t depth) {
    const Groups groups(m, block);
    const __m512i* from = static_cast<const __m512i*>(m.weights) + (block * m.k_padded + begin) / 4 * Lines::kCount;
    __m512i* to = reinterpret_cast<__m512i*>(memory_ + kBefore);
    if (groups.multipliers == nullptr) {
      UnpackFours(Lines(nullptr), from, depth / 4, to, [](int, __m512i numbers) { return numbers; });
    } else {
      const int64_t size = 8 * groups.size;
      const int64_t end = begin + depth;
      for (int64_t k = begin; k < end;) {
        const int64_t group = k / size;
        const int64_t next = (group + 1) * size < end ? (group + 1) * size : end;
        const int64_t fours = (next - k) / 4;
        const uint8_t* columns = groups.multipliers + group * kBlockColumns;
        const Multipliers multipliers(columns);
        UnpackFours(Lines(columns), from, fours, to,
                    [&](int gate, __m512i numbers) { return multipliers.Times(gate, numbers); });
        from += fours * Lines::kCount;
        to += fours * kGates;
        k = next;
      }
    }
    CompleteStores();
  }

 private:
  template <typename Lines, typename Scale>
  RNNQC_FORCEINLINE static void UnpackFours(const Lines& lines, const __m512i* from, int64_t fours, __m512i* to,
                                            const Scale& scale) {
    for (int64_t i = 0; i < fours; ++i) {
      __m512i numbers[kGates];
      lines.Unpack(from, numbers);
      RNNQC_UNROLL(4)
      for (int gate = 0; gate < kGates; ++gate) _mm512_store_si512(to + gate, scale(gate, numbers[gate]));
      from += Lines::kCount;
      to += kGates;
    }
  }

  // Those of the columns of a block, for each of a column's four bytes: of bytes at even places and at odd ones.
  class Multipliers {
   public:
    explicit Multipliers(const uint8_t* columns) {
      RNNQC_UNROLL(4)
      for (int gate = 0; gate < kGates; ++gate) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(columns + 16 * gate));
        const __m128i sixteen = _mm_and_si128(bytes, _mm_set1_epi8(kMultiplierMask));
        const __m512i all = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(sixteen), FourOfEach());
        even_[gate] = _mm512_and_si512(all, _mm512_set1_epi16(0x00ff));
        odd_[gate] = _mm512_andnot_si512(_mm512_set1_epi16(0x00ff), all);
      }
    }

    // Products that are bytes, too.
    RNNQC_FORCEINLINE __m512i Times(int gate, __m512i numbers) const {
      constexpr int kChoose = 0xca;  // a ? b : c
      const __m512i even = _mm512_maddubs_epi16(even_[gate], numbers);
      const __m512i odd = _mm512_slli_epi16(_mm512_maddubs_epi16(odd_[gate], numbers), 8);
      return _mm512_ternarylogic_epi32(_mm512_set1_epi16(0x00ff), even, odd, kChoose);
    }

   private:
    __m512i even_[kGates], odd_[kGates];
  };

  static constexpr int64_t kBefore = kTileRows * kLines * kLine;

  alignas(kAlignment) uint8_t memory_[kBefore + kMostDepth / 4 * kLines * kLine];
};

// All sums. place(row, block) is where those of a row and a block go to; finish(row, rows, block) is called when they
// are there.
template <typename Place, typename Finish>
void Sums(const MatmulArgs& m, const int32_t* start, int64_t sums_stride, const Place& place, const Finish& finish) {
  const RowTiles rows(m.rows);
  const Depth depth(m.k_padded, TileDepth(m.k_padded));
  const Tiles tiles(rows, depth.tile);
  for (int64_t i = m.block_begin; i < m.block_end; ++i) {
    const int64_t block = BlockAt(m, i);
    const First first{start == nullptr ? nullptr : start + block * kBlockColumns, false};
    const uint8_t* weights = static_cast<const uint8_t*>(m.weights) + block * m.k_padded * kBlockColumns;
    for (int64_t tile = 0; tile < rows.count(); tile += 2) {
      const int64_t row = rows.begin(tile);
      const Operands operands{m.a + row * m.a_stride, m.a_stride, weights, depth, ColumnsOf(m, block)};
      SumsOfTiles(operands, rows, tile, first, place(row, block), sums_stride);
      finish(row, RowsOfTiles(rows, tile), block);
    }
  }
}

// The same with weights of few bits.
template <typename Lines, typename Place, typename Finish>
void SumsOfFewBits(const MatmulArgs& m, const int32_t* start, int64_t sums_stride, const Place& place,
                   const Finish& finish) {
  const RowTiles rows(m.rows);
  const int64_t tile_depth = TileDepth(m.k_padded);
  const Tiles tiles(rows, tile_depth);
  Panel panel;
  for (int64_t i = m.block_begin; i < m.block_end; ++i) {
    const int64_t block = BlockAt(m, i);
    for (int64_t tile = 0; tile < rows.count(); tile += 2) {
      const int64_t row = rows.begin(tile);
      for (int64_t begin = 0; begin < m.k_padded; begin += Panel::kMostDepth) {
        const int64_t left = m.k_padded - begin;
        const int64_t depth = left < Panel::kMostDepth ? left : Panel::kMostDepth;
        if (tile == 0 || m.k_padded > Panel::kMostDepth) panel.Unpack<Lines>(m, block, begin, depth);
        const First first{start == nullptr ? nullptr : start + block * kBlockColumns, begin > 0};
        const Operands operands{m.a + row * m.a_stride + begin, m.a_stride, panel.lines(), Depth(depth, tile_depth),
                                ColumnsOf(m, block)};
        SumsOfTiles(operands, rows, tile, first, place(row, block), sums_stride);
      }
      finish(row, RowsOfTiles(rows, tile), block);
    }
  }
}

// all_sums is Sums or SumsOfFewBits.
template <typename AllSums>
void RecurrentTiles(const RecurrentArgs& args, const AllSums& all_sums) {
  all_sums(
      args.matmul, args.matmul.start, args.acc_stride,
      [&args](int64_t row, int64_t block) { return args.acc + row * args.acc_stride + block * kBlockColumns; },
      [](int64_t, int64_t, int64_t) {});
}

template <typename AllSums>
void ProjectTiles(const ProjectArgs& args, const AllSums& all_sums) {
  alignas(kAlignment) int32_t sums[kMostRows * kBlockColumns];
  all_sums(
      args.matmul, nullptr, kBlockColumns, [&sums](int64_t, int64_t) { return sums; },
      [&args, &sums](int64_t row, int64_t rows, int64_t block) {
        s32_f32_finish_projection__avx512vnni(args, row, rows, block, sums);
      });
}

constexpr auto kSums = [](const auto&... arguments) { Sums(arguments...); };
constexpr auto kSumsS4 = [](const auto&... arguments) { SumsOfFewBits<LinesS4>(arguments...); };
constexpr auto kSumsOfPlaces = [](const auto&... arguments) { SumsOfFewBits<LinesOfPlaces>(arguments...); };

}  // namespace

void u8s8_s32_recurrent_32x64__amxint8(const RecurrentArgs& args) {
  const MatmulArgs& m = args.matmul;
  if (m.rows == 1) return Row(m, m.start, args.acc);
  if (IsFew(m, kFewRows)) return u8s8_s32_recurrent_6x64__avx512vnni(args);
  RecurrentTiles(args, kSums);
}

void u8s8_f32_project_32x64__amxint8(const ProjectArgs& args) {
  const MatmulArgs& m = args.matmul;
  if (m.rows == 1) return ProjectRow(args, Row);
  if (IsFew(m, kFewRows)) return u8s8_f32_project_6x64__avx512vnni(args);
  ProjectTiles(args, kSums);
}

void u8s4_s32_recurrent_32x64__amxint8(const RecurrentArgs& args) {
  const MatmulArgs& m = args.matmul;
  if (m.rows == 1) return RowS4(m, m.start, args.acc);
  if (IsFew(m, kFewRowsOfFewBits)) return u8s4_s32_recurrent_6x64__avx512vnni(args);
  RecurrentTiles(args, kSumsS4);
}

void u8s4_f32_project_32x64__amxint8(const ProjectArgs& args) {
  const MatmulArgs& m = args.matmul;
  if (m.rows == 1) return ProjectRow(args, RowS4);
  if (IsFew(m, kFewRowsOfFewBits)) return u8s4_f32_project_6x64__avx512vnni(args);
  ProjectTiles(args, kSumsS4);
}

void u8s4_s32_recurrent_sets_32x64__amxint8(const RecurrentArgs& args) {
  if (IsFew(args.matmul, kFewRowsOfFewBits)) return RecurrentOfPlaces(args);
  RecurrentTiles(args, kSumsOfPlaces);
}

void u8s4_f32_project_sets_32x64__amxint8(const ProjectArgs& args) {
  if (IsFew(args.matmul, kFewRowsOfFewBits)) return ProjectOfPlaces(args);
  ProjectTiles(args, kSumsOfPlaces);
}

}  // namespace rnnqc
