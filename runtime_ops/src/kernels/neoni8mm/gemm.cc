// Armv8.6 with matrix products of int8: two rows and two columns of eight k to an instruction, unsigned by signed. One
// row takes the dot products of the same extension.

#include <arm_neon.h>

#include <cstdint>

#include "kernels/common/compiler.h"
#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

#include "kernels/neon/tiles.inc"

// A tile is a few pairs of rows and one gate of a block, or one row and two gates; each register of weights holds two
// columns.
constexpr int64_t kTilePairs = 3;
constexpr int kGateRegisters = static_cast<int>(kBlockUnits / 2);
constexpr int64_t kRowColumns = 2 * kBlockUnits;
constexpr int64_t kOctetBytes = kBlockColumns * 8;  // eight consecutive k of a block

inline void Store(int32_t* to, const int32_t* start, int32x4_t sums) {
  if (start != nullptr) sums = vaddq_s32(sums, vld1q_s32(start));
  vst1q_s32(to, sums);
}

// A part of the sums: rows and columns, all of one block.
struct Tile {
  const uint8_t* a;
  int64_t a_stride;
  int64_t k_padded;
  const int8_t* weights;  // of the first column
  int64_t rows;           // of pairs: the second row of the last one may be absent
};

// Sums of kPairs pairs of rows and one gate, from `start` or 0 if that is null.
template <int kPairs>
RNNQC_NOINLINE void PairSums(const Tile& tile, const int32_t* start, int32_t* to, int64_t stride) {
  int32x4_t sums[kPairs][kGateRegisters];
  const uint8_t* first[kPairs];
  const uint8_t* second[kPairs];
  RNNQC_UNROLL(4)
  for (int p = 0; p < kPairs; ++p) {
    first[p] = tile.a + 2 * p * tile.a_stride;
    second[p] = 2 * p + 1 < tile.rows ? first[p] + tile.a_stride : first[p];
    RNNQC_UNROLL(8)
    for (int i = 0; i < kGateRegisters; ++i) sums[p][i] = vdupq_n_s32(0);
  }
  const int8_t* w = tile.weights;
  for (int64_t k = 0; k < tile.k_padded; k += 8) {
    uint8x16_t codes[kPairs];
    RNNQC_UNROLL(4)
    for (int p = 0; p < kPairs; ++p) codes[p] = vcombine_u8(vld1_u8(first[p] + k), vld1_u8(second[p] + k));
    RNNQC_UNROLL(8)
    for (int i = 0; i < kGateRegisters; ++i) {
      const int8x16_t weights = vld1q_s8(w + i * 16);
      RNNQC_UNROLL(4)
      for (int p = 0; p < kPairs; ++p) sums[p][i] = vusmmlaq_s32(sums[p][i], codes[p], weights);
    }
    w += kOctetBytes;
  }
  RNNQC_UNROLL(4)
  for (int p = 0; p < kPairs; ++p) {
    int32_t* row = to + 2 * p * stride;
    RNNQC_UNROLL(4)
    for (int i = 0; i < kGateRegisters; i += 2) {
      const int64x2_t left = vreinterpretq_s64_s32(sums[p][i]);
      const int64x2_t right = vreinterpretq_s64_s32(sums[p][i + 1]);
      const int32_t* from = start == nullptr ? nullptr : start + 2 * i;
      Store(row + 2 * i, from, vreinterpretq_s32_s64(vzip1q_s64(left, right)));
      if (2 * p + 1 < tile.rows) Store(row + stride + 2 * i, from, vreinterpretq_s32_s64(vzip2q_s64(left, right)));
    }
  }
}

// Sums of one row and two gates.
RNNQC_NOINLINE void RowSums(const Tile& tile, const int32_t* start, int32_t* to, int64_t /*stride*/) {
  constexpr int kRegisters = 2 * kGateRegisters;
  int32x4_t sums[kRegisters];
  RNNQC_UNROLL(16)
  for (int i = 0; i < kRegisters; ++i) sums[i] = vdupq_n_s32(0);
  const int8_t* w = tile.weights;
  for (int64_t k = 0; k < tile.k_padded; k += 8) {
    const uint8x8_t eight = vld1_u8(tile.a + k);
    const uint8x16_t codes = vcombine_u8(eight, eight);
    RNNQC_UNROLL(16)
    for (int i = 0; i < kRegisters; ++i) sums[i] = vusdotq_s32(sums[i], codes, vld1q_s8(w + i * 16));
    w += kOctetBytes;
  }
  RNNQC_UNROLL(8)
  for (int i = 0; i < kRegisters; i += 2) {
    Store(to + 2 * i, start == nullptr ? nullptr : start + 2 * i, vpaddq_s32(sums[i], sums[i + 1]));
  }
}

using SumsFn = void(const Tile& tile, const int32_t* start, int32_t* to, int64_t stride);
constexpr SumsFn* kPairSums[kTilePairs] = {PairSums<1>, PairSums<2>, PairSums<3>};

// Calls run(function, tile, row, column, columns) for tiles that cover all rows and the wanted blocks.
template <typename Run>
inline void ForEachTile(const MatmulArgs& m, const Run& run) {
  const bool one = m.rows == 1;
  const int64_t columns = one ? kRowColumns : kBlockUnits;
  ForEachBlock(m, [&](int64_t block) {
    const int8_t* w = static_cast<const int8_t*>(m.weights) + block * (m.k_padded / 8) * kOctetBytes;
    for (int64_t first = 0; first < kBlockColumns; first += columns) {
      for (int64_t row = 0; row < m.rows;) {
        const int64_t pairs = NextTile((m.rows - row + 1) / 2, kTilePairs);
        const int64_t rows = Least(2 * pairs, m.rows - row);
        const Tile tile{m.a + row * m.a_stride, m.a_stride, m.k_padded, w + first * 8, rows};
        run(*(one ? RowSums : kPairSums[pairs - 1]), tile, row, block * kBlockColumns + first, columns);
        row += rows;
      }
    }
  });
}

}  // namespace

void u8s8_s32_recurrent_6x16__neoni8mm(const RecurrentArgs& args) {
  const MatmulArgs& m = args.matmul;
  ForEachTile(m, [&](SumsFn& sums, const Tile& tile, int64_t row, int64_t column, int64_t /*columns*/) {
    sums(tile, m.start + column, args.acc + row * args.acc_stride + column, args.acc_stride);
  });
}

void u8s8_f32_project_6x16__neoni8mm(const ProjectArgs& args) {
  alignas(kAlignment) int32_t part[2 * kTilePairs * kBlockUnits];
  static_assert(2 * kTilePairs * kBlockUnits >= kRowColumns, "a row of two gates, too");
  ForEachTile(args.matmul, [&](SumsFn& sums, const Tile& tile, int64_t row, int64_t column, int64_t columns) {
    sums(tile, nullptr, part, columns);
    for (int64_t r = 0; r < tile.rows; ++r) Finish(args, row + r, column, columns, part + r * columns);
  });
}

}  // namespace rnnqc
