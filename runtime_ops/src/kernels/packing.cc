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

void PackS8Blocks(const int8_t* weights, int64_t k, int64_t units, int64_t k_padded, int8_t* packed) {
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t gate = 0; gate < kGates; ++gate) {
      const int8_t* row = weights + (i * kGates + gate) * units;
      for (int64_t unit = 0; unit < units; ++unit) {
        const int64_t group = (unit / kBlockUnits) * (k_padded / 4) + i / 4;
        packed[(group * kBlockColumns + gate * kBlockUnits + unit % kBlockUnits) * 4 + i % 4] = row[unit];
      }
    }
  }
}

}  // namespace

int64_t PaddedDepth(PackedFormat format, int64_t k) { return RoundUp(k, format == PackedFormat::kS16Columns ? 16 : 4); }

int64_t PackedBytes(PackedFormat format, int64_t k, int64_t units) {
  const int64_t element = format == PackedFormat::kS16Columns ? 2 : 1;
  return BlockCount(units) * kBlockColumns * PaddedDepth(format, k) * element;
}

void PackWeights(PackedFormat format, const int8_t* weights, int64_t k, int64_t units, void* packed) {
  std::memset(packed, 0, static_cast<size_t>(PackedBytes(format, k, units)));
  const int64_t k_padded = PaddedDepth(format, k);
  if (format == PackedFormat::kS16Columns) {
    PackS16Columns(weights, k, units, k_padded, static_cast<int16_t*>(packed));
  } else {
    PackS8Blocks(weights, k, units, k_padded, static_cast<int8_t*>(packed));
  }
  if (format == PackedFormat::kU8Blocks) {
    uint8_t* bytes = static_cast<uint8_t*>(packed);
    for (int64_t i = 0; i < PackedBytes(format, k, units); ++i) bytes[i] ^= 0x80;
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
