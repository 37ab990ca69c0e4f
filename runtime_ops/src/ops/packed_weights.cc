#include "ops/packed_weights.h"

#include <stdexcept>
#include <string>

#include "kernels/common/packing.h"

namespace rnnqc {
namespace {

std::string Place(int64_t row, int64_t column) {
  return "[" + std::to_string(row) + ", " + std::to_string(column) + "]";
}

void CheckMultipliers(const uint8_t* multipliers, int64_t groups, int64_t columns) {
  for (int64_t i = 0; i < groups * columns; ++i) {
    if (multipliers[i] >= 1 && multipliers[i] <= kLargestMultiplier) continue;
    throw std::invalid_argument("the group multiplier at " + Place(i / columns, i % columns) + " is " +
                                std::to_string(multipliers[i]) + ", expected 1 .. " +
                                std::to_string(kLargestMultiplier));
  }
}

}  // namespace

void CheckPackedBits(const char* attribute, int64_t bits) {
  if (bits >= kFewestBits && bits <= kMostBits) return;
  throw std::invalid_argument("attribute " + std::string(attribute) + " is " + std::to_string(bits) +
                              ", expected 4, 5 or 6. Other values may need a newer rnnqc library.");
}

int64_t PackedRow(int64_t columns, int64_t bits) {
  return (columns + 1) / 2 + (columns * (bits - kFewestBits) + 7) / 8;
}

std::string PackedRowInWords(const std::string& columns, int64_t bits) {
  const std::string nibbles = "ceil(" + columns + " / 2)";
  return bits == kFewestBits ? nibbles : nibbles + " + ceil(" + columns + (bits == 5 ? " / 8)" : " / 4)");
}

std::vector<int8_t> UnpackWeights(const uint8_t* packed, int64_t bits, int64_t k, int64_t columns,
                                  const uint8_t* multipliers, int64_t group_size) {
  const int64_t half = (columns + 1) / 2;
  const int64_t row = PackedRow(columns, bits);
  const int64_t upper = row - half;
  const int64_t upper_bits = bits - kFewestBits;
  if (multipliers != nullptr) CheckMultipliers(multipliers, GroupCount(k, group_size), columns);
  std::vector<int8_t> codes(static_cast<size_t>(k * columns));
  for (int64_t i = 0; i < k; ++i) {
    const uint8_t* group = multipliers == nullptr ? nullptr : multipliers + i / group_size * columns;
    for (int64_t column = 0; column < columns; ++column) {
      const uint8_t byte = packed[i * row + column % half];
      int number = (column < half ? byte & 15 : byte >> 4) - (1 << (bits - 1));
      if (upper > 0) {
        const int part = packed[i * row + half + column % upper] >> (column / upper * upper_bits);
        number += (part & ((1 << upper_bits) - 1)) * 16;
      }
      const int code = group == nullptr ? number : number * group[column];
      if (code < INT8_MIN || code > INT8_MAX) {
        throw std::invalid_argument("the weight at " + Place(i, column) + ", " + std::to_string(number) + " times " +
                                    std::to_string(group[column]) + ", is outside -128 .. 127");
      }
      codes[static_cast<size_t>(i * columns + column)] = static_cast<int8_t>(code);
    }
  }
  return codes;
}

}  // namespace rnnqc
