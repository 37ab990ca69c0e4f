#include "ops/packed_weights.h"

#include <stdexcept>
#include <string>

#include "kernels/common/packing.h"

namespace rnnqc {
namespace {

std::string Place(int64_t row, int64_t column) {
  return "[" + std::to_string(row) + ", " + std::to_string(column) + "]";
}

// Of kUneven; the first one holds the even values.
constexpr int kSets = 5;
constexpr int8_t kSetValues[kSets][16] = {
    {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7},
    {-15, -10, -8, -6, -4, -3, -2, -1, 0, 1, 2, 4, 6, 8, 11, 15},
    {-10, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 8, 10},
    {-9, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 8},
    {-8, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 9},
};
constexpr int kSetShift = 5;
constexpr int kMultiplierMask = (1 << kSetShift) - 1;

void CheckMultipliers(const uint8_t* multipliers, int64_t groups, int64_t columns, int64_t codebook) {
  for (int64_t i = 0; i < groups * columns; ++i) {
    const int multiplier = codebook == kUneven ? multipliers[i] & kMultiplierMask : multipliers[i];
    const int set = codebook == kUneven ? multipliers[i] >> kSetShift : 0;
    if (multiplier >= 1 && multiplier <= kLargestMultiplier && set < kSets) continue;
    const std::string of_set = codebook == kUneven ? " of set " + std::to_string(set) : "";
    const std::string sets = codebook == kUneven ? " of sets 0 .. " + std::to_string(kSets - 1) : "";
    throw std::invalid_argument("the group multiplier at " + Place(i / columns, i % columns) + " is " +
                                std::to_string(multiplier) + of_set + ", expected 1 .. " +
                                std::to_string(kLargestMultiplier) + sets);
  }
}

}  // namespace

void CheckPackedBits(const char* attribute, int64_t bits) {
  if (bits >= kFewestBits && bits <= kMostBits) return;
  throw std::invalid_argument("attribute " + std::string(attribute) + " is " + std::to_string(bits) +
                              ", expected 4, 5 or 6. Other values may need a newer rnnqc library.");
}

void CheckCodebook(const char* attribute, int64_t codebook, int64_t bits, int64_t group_size) {
  if (codebook == kEven || (codebook == kUneven && bits == kFewestBits && group_size > 0)) return;
  throw std::invalid_argument("attribute " + std::string(attribute) + " is " + std::to_string(codebook) +
                              ", expected 0, or 1 with numbers of 4 bits in groups. Other values may need a newer "
                              "rnnqc library.");
}

int64_t PackedRow(int64_t columns, int64_t bits) {
  return (columns + 1) / 2 + (columns * (bits - kFewestBits) + 7) / 8;
}

std::string PackedRowInWords(const std::string& columns, int64_t bits) {
  const std::string nibbles = "ceil(" + columns + " / 2)";
  return bits == kFewestBits ? nibbles : nibbles + " + ceil(" + columns + (bits == 5 ? " / 8)" : " / 4)");
}

std::vector<int8_t> UnpackWeights(const uint8_t* packed, int64_t bits, int64_t k, int64_t columns,
                                  const uint8_t* multipliers, int64_t group_size, int64_t codebook) {
  const int64_t half = (columns + 1) / 2;
  const int64_t row = PackedRow(columns, bits);
  const int64_t upper = row - half;
  const int64_t upper_bits = bits - kFewestBits;
  if (multipliers != nullptr) {
    CheckMultipliers(multipliers, GroupCount(k, group_size), columns, codebook);
  }
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
      int multiplier = group == nullptr ? 1 : group[column];
      if (codebook == kUneven) {
        number = kSetValues[multiplier >> kSetShift][number + 8];
        multiplier &= kMultiplierMask;
      }
      const int code = number * multiplier;
      if (code < INT8_MIN || code > INT8_MAX) {
        throw std::invalid_argument("the weight at " + Place(i, column) + ", " + std::to_string(number) + " times " +
                                    std::to_string(multiplier) + ", is outside -128 .. 127");
      }
      codes[static_cast<size_t>(i * columns + column)] = static_cast<int8_t>(code);
    }
  }
  return codes;
}

}  // namespace rnnqc
