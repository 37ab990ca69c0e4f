// Armv8.0, without dot products (Cortex-A53, A72): eight products of int8 to an instruction, whose int16 results are
// added in pairs into int32 lanes. Codes are multiplied less 128, and 128 times the sum of a column's weights, which
// stands in front of its block, is added. A product is at most 2^14, and no two are added in int16: nothing saturates.

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "kernels/common/compiler.h"
#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

#include "kernels/neon/tiles.inc"

// A tile is one or two rows and one gate of a block, whose sums take 8 registers for each row; with more of them g++
// keeps some in memory.
constexpr int64_t kTileRows = 2;
constexpr int kGateRegisters = static_cast<int>(kBlockUnits / 4);
constexpr int64_t kQuadBytes = kBlockColumns * 4;  // four consecutive k of a block

// Codes k .. k + 3 of a row, four times.
inline uint8x16_t FourCodes(const uint8_t* codes) {
  uint32_t four;
  std::memcpy(&four, codes, sizeof(four));
  return vreinterpretq_u8_u32(vdupq_n_u32(four));
}

inline int8x16_t Less128(uint8x16_t codes) { return vreinterpretq_s8_u8(veorq_u8(codes, vdupq_n_u8(0x80))); }

// g++ loads a lower half again instead of taking it from the register, in the middle of a loop that has none to spare.
inline int8x16_t Loaded(const int8_t* from) {
  int8x16_t weights = vld1q_s8(from);
#if defined(__GNUC__)
  __asm__("" : "+w"(weights));
#endif
  return weights;
}

// Sums of four units: lanes 0 and 1 of `low` belong to the first one, 2 and 3 to the second one.
struct Sums {
  int32x4_t low;
  int32x4_t high;
};

// Adds the products of a gate's weights, which all rows share, and of each row's codes 4 * kLane and on.
template <int kLane, int kRows>
RNNQC_FORCEINLINE void AddProducts(Sums (&sums)[kRows][kGateRegisters], const int8x16_t (&codes)[kRows],
                                   const int8_t* w) {
  int8x16_t four[kRows];
  RNNQC_UNROLL(4)
  for (int r = 0; r < kRows; ++r) {
    four[r] = vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(codes[r]), kLane));
  }
  RNNQC_UNROLL(4)
  for (int i = 0; i < kGateRegisters; ++i) {
    const int8x16_t weights = Loaded(w + i * 16);
    RNNQC_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      const int16x8_t low = vmull_s8(vget_low_s8(weights), vget_low_s8(four[r]));
      sums[r][i].low = vpadalq_s16(sums[r][i].low, low);
      sums[r][i].high = vpadalq_s16(sums[r][i].high, vmull_high_s8(weights, four[r]));
    }
  }
}

// A part of the sums: rows and columns, all of one block.
struct Tile {
  const uint8_t* a;
  int64_t a_stride;
  int64_t k_padded;
  const int8_t* weights;       // of the first column
  const int32_t* column_sums;  // 128 times the sums of the columns' weights
};

// Sums of kRows rows and one gate, and `start` with them unless that is null.
template <int kRows>
RNNQC_NOINLINE void TileSums(const Tile& tile, const int32_t* start, int32_t* to, int64_t stride) {
  Sums sums[kRows][kGateRegisters];
  RNNQC_UNROLL(4)
  for (int r = 0; r < kRows; ++r) {
    RNNQC_UNROLL(4)
    for (int i = 0; i < kGateRegisters; ++i) sums[r][i] = {vdupq_n_s32(0), vdupq_n_s32(0)};
  }
  const int8_t* w = tile.weights;
  int8x16_t codes[kRows];
  int64_t k = 0;
  for (; k + 16 <= tile.k_padded; k += 16) {
    RNNQC_UNROLL(4)
    for (int r = 0; r < kRows; ++r) codes[r] = Less128(vld1q_u8(tile.a + r * tile.a_stride + k));
    AddProducts<0>(sums, codes, w);
    AddProducts<1>(sums, codes, w + kQuadBytes);
    AddProducts<2>(sums, codes, w + 2 * kQuadBytes);
    AddProducts<3>(sums, codes, w + 3 * kQuadBytes);
    w += 4 * kQuadBytes;
  }
  for (; k < tile.k_padded; k += 4) {
    RNNQC_UNROLL(4)
    for (int r = 0; r < kRows; ++r) codes[r] = Less128(FourCodes(tile.a + r * tile.a_stride + k));
    AddProducts<0>(sums, codes, w);
    w += kQuadBytes;
  }
  RNNQC_UNROLL(4)
  for (int i = 0; i < kGateRegisters; ++i) {
    int32x4_t first = vld1q_s32(tile.column_sums + i * 4);
    if (start != nullptr) first = vaddq_s32(first, vld1q_s32(start + i * 4));
    RNNQC_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      vst1q_s32(to + r * stride + i * 4, vaddq_s32(first, vpaddq_s32(sums[r][i].low, sums[r][i].high)));
    }
  }
}

using SumsFn = void(const Tile& tile, const int32_t* start, int32_t* to, int64_t stride);
constexpr SumsFn* kTileSums[kTileRows] = {TileSums<1>, TileSums<2>};

// Calls run(function, tile, row, rows, column) for tiles that cover all rows and the wanted blocks.
template <typename Run>
inline void ForEachTile(const MatmulArgs& m, const Run& run) {
  const uint8_t* packed = static_cast<const uint8_t*>(m.weights);
  const int64_t block_bytes = kColumnSumBytes + m.k_padded / 4 * kQuadBytes;
  ForEachBlock(m, [&](int64_t block) {
    const int32_t* column_sums = reinterpret_cast<const int32_t*>(packed + block * block_bytes);
    const int8_t* w = reinterpret_cast<const int8_t*>(packed + block * block_bytes + kColumnSumBytes);
    for (int64_t first = 0; first < kBlockColumns; first += kBlockUnits) {
      for (int64_t row = 0; row < m.rows;) {
        const int64_t count = NextTile(m.rows - row, kTileRows);
        const Tile tile{m.a + row * m.a_stride, m.a_stride, m.k_padded, w + first * 4, column_sums + first};
        run(*kTileSums[count - 1], tile, row, count, block * kBlockColumns + first);
        row += count;
      }
    }
  });
}

}  // namespace

void u8s8_s32_recurrent_2x16__neon(const RecurrentArgs& args) {
  const MatmulArgs& m = args.matmul;
  ForEachTile(m, [&](SumsFn& sums, const Tile& tile, int64_t row, int64_t /*rows*/, int64_t column) {
    sums(tile, m.start + column, args.acc + row * args.acc_stride + column, args.acc_stride);
  });
}

void u8s8_f32_project_2x16__neon(const ProjectArgs& args) {
  alignas(kAlignment) int32_t part[kTileRows * kBlockUnits];
  ForEachTile(args.matmul, [&](SumsFn& sums, const Tile& tile, int64_t row, int64_t rows, int64_t column) {
    sums(tile, nullptr, part, kBlockUnits);
    for (int64_t r = 0; r < rows; ++r) Finish(args, row + r, column, kBlockUnits, part + r * kBlockUnits);
  });
}

}  // namespace rnnqc
