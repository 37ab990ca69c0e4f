#include "kernels/packing.h"

#include <cstring>

namespace rnnqc {
namespace {

int64_t ColumnOf(int64_t gate, int64_t unit) {
  return (unit / kBlockUnits) * kBlockColumns + gate * kBlockUnits + unit % kBlockUnits;
}

void PackS16Columns(const int8_t* weights, int64_t k, int64_t units, int64_t k_padded, int16_t* packed) {
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t gate = 0; gate < kGates; ++gate) {
      const int8_t* row = weights + (i * kGates + gate) * units;
      for (int64_t unit = 0; unit < units; ++unit) packed[ColumnOf(gate, unit) * k_padded + i] = row[unit];
    }
  }
}

// Blocks of kS8Blocks, each after `gap` bytes that are left alone.
void PackS8Blocks(const int8_t* weights, int64_t k, int64_t units, int64_t k_padded, int64_t gap, int8_t* packed) {
  const int64_t block_bytes = kBlockColumns * k_padded + gap;
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t gate = 0; gate < kGates; ++gate) {
      const int8_t* row = weights + (i * kGates + gate) * units;
      for (int64_t unit = 0; unit < units; ++unit) {
        int8_t* group = packed + (unit / kBlockUnits) * block_bytes + gap + (i / 4) * kBlockColumns * 4;
        group[(gate * kBlockUnits + unit % kBlockUnits) * 4 + i % 4] = row[unit];
      }
    }
  }
}

// In front of every block.
void PackColumnSums(const int8_t* weights, int64_t k, int64_t units, int64_t k_padded, uint8_t* packed) {
  AlignedArray<int32_t> sums(BlockCount(units) * kBlockColumns);
  PackStartValues(weights, k, units, -128, sums.data());
  for (int64_t block = 0; block < BlockCount(units); ++block) {
    std::memcpy(packed + block * (kBlockColumns * k_padded + kColumnSumBytes), sums.data() + block * kBlockColumns,
                static_cast<size_t>(kColumnSumBytes));
  }
}

}  // namespace

int64_t PaddedDepth(PackedFormat format, int64_t k) { return RoundUp(k, format == PackedFormat::kS16Columns ? 16 : 4); }

int64_t PackedBytes(PackedFormat format, int64_t k, int64_t units) {
  const int64_t element = format == PackedFormat::kS16Columns ? 2 : 1;
  const int64_t sums = format == PackedFormat::kS8BlocksWithSums ? kColumnSumBytes : 0;
  return BlockCount(units) * (kBlockColumns * PaddedDepth(format, k) * element + sums);
}

void PackWeights(PackedFormat format, const int8_t* weights, int64_t k, int64_t units, void* packed) {
  std::memset(packed, 0, static_cast<size_t>(PackedBytes(format, k, units)));
  const int64_t k_padded = PaddedDepth(format, k);
  switch (format) {
    case PackedFormat::kS16Columns:
      PackS16Columns(weights, k, units, k_padded, static_cast<int16_t*>(packed));
      break;
    case PackedFormat::kS8Blocks:
      PackS8Blocks(weights, k, units, k_padded, 0, static_cast<int8_t*>(packed));
      break;
    case PackedFormat::kS8BlocksWithSums:
      PackS8Blocks(weights, k, units, k_padded, kColumnSumBytes, static_cast<int8_t*>(packed));
      PackColumnSums(weights, k, units, k_padded, static_cast<uint8_t*>(packed));
      break;
  }
}

void PackStartValues(const int8_t* weights, int64_t k, int64_t units, int32_t zero_point, int32_t* start) {
  std::memset(start, 0, static_cast<size_t>(BlockCount(units) * kBlockColumns) * sizeof(int32_t));
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t gate = 0; gate < kGates; ++gate) {
      const int8_t* row = weights + (i * kGates + gate) * units;
      for (int64_t unit = 0; unit < units; ++unit) start[ColumnOf(gate, unit)] -= zero_point * row[unit];
    }
  }
}

void PackColumns(const float* values, int64_t gates, int64_t units, float* packed) {
  std::memset(packed, 0, static_cast<size_t>(BlockCount(units) * kBlockColumns) * sizeof(float));
  for (int64_t gate = 0; gate < gates; ++gate) {
    for (int64_t unit = 0; unit < units; ++unit) packed[ColumnOf(gate, unit)] = values[gate * units + unit];
  }
}

PackedMatrix PackMatrix(PackedFormat format, const int8_t* weights, int64_t k, int64_t units, int32_t zero_point) {
  PackedMatrix matrix;
  matrix.k = k;
  matrix.k_padded = PaddedDepth(format, k);
  matrix.weights = AlignedArray<uint8_t>(PackedBytes(format, k, units));
  matrix.start = AlignedArray<int32_t>(BlockCount(units) * kBlockColumns);
  PackWeights(format, weights, k, units, matrix.weights.data());
  PackStartValues(weights, k, units, zero_point, matrix.start.data());
  return matrix;
}

}  // namespace rnnqc
