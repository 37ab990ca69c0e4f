// Armv8.2 with the dot product extension: four units of one gate to a register. The four-way product multiplies
// unsigned by unsigned, so the weights come as w + 128, and 128 times the sum of a row's codes is taken off again.

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "kernels/common/compiler.h"
#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

#include "kernels/neon/tiles.inc"

// A tile is a few rows and one gate of a block, whose weights then stay in the first-level cache for all rows.
constexpr int64_t kTileRows = 4;
constexpr int kGateRegisters = static_cast<int>(kBlockUnits / 4);
constexpr int kBlockRegisters = static_cast<int>(kBlockColumns / 4);
// Four consecutive k of a block, and of one gate of it.
constexpr int64_t kQuadBytes = kBlockColumns * 4;
constexpr int64_t kGateQuadBytes = kBlockUnits * 4;
// Rows whose sums of codes are kept.
constexpr int64_t kChunkRows = 64;

inline uint8x16_t FourCodes(const uint8_t* codes) {
  uint32_t four;
  std::memcpy(&four, codes, sizeof(four));
  return vreinterpretq_u8_u32(vdupq_n_u32(four));
}

// -128 times the sum of a row's codes, with those in the padding, where w + 128 is 128. Modulo 2^32 like all sums here;
// the results fit.
inline uint32_t Correction(const uint8_t* a, int64_t k_padded) {
  const uint8x16_t ones = vdupq_n_u8(1);
  uint32x4_t sum0 = vdupq_n_u32(0);
  uint32x4_t sum1 = vdupq_n_u32(0);
  int64_t k = 0;
  for (; k + 32 <= k_padded; k += 32) {
    sum0 = vdotq_u32(sum0, vld1q_u8(a + k), ones);
    sum1 = vdotq_u32(sum1, vld1q_u8(a + k + 16), ones);
  }
  uint32_t sum = vaddvq_u32(vaddq_u32(sum0, sum1));
  for (; k < k_padded; k += 4) sum += vgetq_lane_u32(vdotq_u32(vdupq_n_u32(0), FourCodes(a + k), ones), 0);
  return 0u - 128u * sum;
}

// Adds the products of kRegisters registers of weights, which all rows share, and of each row's codes 4 * kLane and on.
template <int kLane, int kRows, int kRegisters>
RNNQC_FORCEINLINE void AddProducts(uint32x4_t (&sum)[kRows][kRegisters], const uint8x16_t (&codes)[kRows],
                                   const uint8_t* w) {
  RNNQC_UNROLL(16)
  for (int i = 0; i < kRegisters; ++i) {
    const uint8x16_t weights = vld1q_u8(w + i * 16);
    RNNQC_UNROLL(4)
    for (int r = 0; r < kRows; ++r) sum[r][i] = vdotq_laneq_u32(sum[r][i], weights, codes[r], kLane);
  }
}

// A part of the sums: rows and columns, all of one block.
struct Tile {
  const uint8_t* a;
  int64_t a_stride;
  int64_t k_padded;
  const uint8_t* weights;      // of the first column
  const uint32_t* correction;  // one for each row
};

// Sums of kRows rows and 4 * kRegisters columns, from `start` or 0 if that is null.
template <int kRows, int kRegisters>
RNNQC_NOINLINE void TileSums(const Tile& tile, const int32_t* start, int32_t* sums, int64_t sums_stride) {
  uint32x4_t sum[kRows][kRegisters];
  RNNQC_UNROLL(16)
  for (int i = 0; i < kRegisters; ++i) {
    const uint32x4_t first = start == nullptr ? vdupq_n_u32(0) : vreinterpretq_u32_s32(vld1q_s32(start + i * 4));
    RNNQC_UNROLL(4)
    for (int r = 0; r < kRows; ++r) sum[r][i] = vaddq_u32(first, vdupq_n_u32(tile.correction[r]));
  }
  const uint8_t* w = tile.weights;
  uint8x16_t codes[kRows];
  int64_t k = 0;
  for (; k + 16 <= tile.k_padded; k += 16) {
    RNNQC_UNROLL(4)
    for (int r = 0; r < kRows; ++r) codes[r] = vld1q_u8(tile.a + r * tile.a_stride + k);
    AddProducts<0>(sum, codes, w);
    AddProducts<1>(sum, codes, w + kQuadBytes);
    AddProducts<2>(sum, codes, w + 2 * kQuadBytes);
    AddProducts<3>(sum, codes, w + 3 * kQuadBytes);
    w += 4 * kQuadBytes;
  }
  for (; k < tile.k_padded; k += 4) {
    RNNQC_UNROLL(4)
    for (int r = 0; r < kRows; ++r) codes[r] = FourCodes(tile.a + r * tile.a_stride + k);
    AddProducts<0>(sum, codes, w);
    w += kQuadBytes;
  }
  RNNQC_UNROLL(4)
  for (int r = 0; r < kRows; ++r) {
    RNNQC_UNROLL(16)
    for (int i = 0; i < kRegisters; ++i) {
      vst1q_s32(sums + r * sums_stride + i * 4, vreinterpretq_s32_u32(sum[r][i]));
    }
  }
}

using SumsFn = void(const Tile& tile, const int32_t* start, int32_t* sums, int64_t sums_stride);
constexpr SumsFn* kTileSums[kTileRows] = {TileSums<1, kGateRegisters>, TileSums<2, kGateRegisters>,
                                          TileSums<3, kGateRegisters>, TileSums<4, kGateRegisters>};

// Calls run(function, tile, row, rows, column, columns) for tiles that cover all rows and the wanted blocks.
template <typename Run>
inline void ForEachTile(const MatmulArgs& m, const Run& run) {
  for (int64_t first = 0; first < m.rows; first += kChunkRows) {
    const int64_t rows = Least(kChunkRows, m.rows - first);
    const uint8_t* a = m.a + first * m.a_stride;
    uint32_t correction[kChunkRows];
    for (int64_t row = 0; row < rows; ++row) correction[row] = Correction(a + row * m.a_stride, m.k_padded);
    ForEachBlock(m, [&](int64_t block) {
      const uint8_t* w = static_cast<const uint8_t*>(m.weights) + block * (m.k_padded / 4) * kQuadBytes;
      const int64_t column = block * kBlockColumns;
      if (rows == 1) {
        const Tile tile{a, m.a_stride, m.k_padded, w, correction};
        run(TileSums<1, kBlockRegisters>, tile, first, int64_t{1}, column, kBlockColumns);
        return;
      }
      for (int64_t gate = 0; gate < kGates; ++gate) {
        for (int64_t row = 0; row < rows;) {
          const int64_t count = NextTile(rows - row, kTileRows);
          const Tile tile{a + row * m.a_stride, m.a_stride, m.k_padded, w + gate * kGateQuadBytes, correction + row};
          run(*kTileSums[count - 1], tile, first + row, count, column + gate * kBlockUnits, kBlockUnits);
          row += count;
        }
      }
    });
  }
}

}  // namespace

void u8s8_s32_recurrent_4x16__neondot(const RecurrentArgs& args) {
  const MatmulArgs& m = args.matmul;
  ForEachTile(m,
              [&](SumsFn& sums, const Tile& tile, int64_t row, int64_t /*rows*/, int64_t column, int64_t /*columns*/) {
                sums(tile, m.start + column, args.acc + row * args.acc_stride + column, args.acc_stride);
              });
}

void u8s8_f32_project_4x16__neondot(const ProjectArgs& args) {
  alignas(kAlignment) int32_t part[kTileRows * kBlockUnits];
  static_assert(kTileRows * kBlockUnits >= kBlockColumns, "a whole row of a block, too");
  ForEachTile(args.matmul,
              [&](SumsFn& sums, const Tile& tile, int64_t row, int64_t rows, int64_t column, int64_t columns) {
                sums(tile, nullptr, part, columns);
                for (int64_t r = 0; r < rows; ++r) Finish(args, row + r, column, columns, part + r * columns);
              });
}

}  // namespace rnnqc
