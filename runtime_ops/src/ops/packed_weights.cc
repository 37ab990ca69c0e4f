#include "ops/packed_weights.h"

#include <stdexcept>
#include <string>

#include "kernels/common/codebooks.h"
#include "kernels/common/packing.h"

namespace rnnqc {
namespace {

std::string Place(int64_t row, int64_t column) {
  return "[" + std::to_string(row) + ", " + std::to_string(column) + "]";
}

// The index of each column among the wide ones, or -1.
std::vector<int64_t> WidePlaces(const uint8_t* multipliers, int64_t groups, int64_t columns, int64_t wide_columns) {
  std::vector<int64_t> places(static_cast<size_t>(columns), -1);
  int64_t found = 0;
  for (int64_t column = 0; wide_columns > 0 && column < columns; ++column) {
    bool wide = true;
    for (int64_t group = 0; group < groups; ++group) wide = wide && multipliers[group * columns + column] == 0;
    if (wide) places[static_cast<size_t>(column)] = found++;
  }
  if (found == wide_columns) return places;
  throw std::invalid_argument(std::to_string(found) + " columns have group multipliers of 0 alone, expected " +
                              std::to_string(wide_columns) + " wide columns");
}

void CheckMultipliers(const uint8_t* multipliers, int64_t groups, int64_t columns, int64_t codebook,
                      const std::vector<int64_t>& wide_places) {
  for (int64_t i = 0; i < groups * columns; ++i) {
    if (wide_places[static_cast<size_t>(i % columns)] >= 0) continue;
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

void CheckWideColumns(const char* attribute, int64_t wide_columns, int64_t group_size) {
  if (wide_columns == 0 || (wide_columns > 0 && group_size > 0)) return;
  throw std::invalid_argument("attribute " + std::string(attribute) + " is " + std::to_string(wide_columns) +
                              ", expected 0, or more with numbers in groups. Other values may need a newer rnnqc "
                              "library.");
}

int64_t PackedRow(int64_t columns, int64_t bits, int64_t wide_columns) {
  return (columns + 1) / 2 + (columns * (bits - kFewestBits) + 7) / 8 + (wide_columns + 1) / 2;
}

std::string PackedRowInWords(const std::string& columns, int64_t bits) {
  const std::string nibbles = "ceil(" + columns + " / 2)";
  return bits == kFewestBits ? nibbles : nibbles + " + ceil(" + columns + (bits == 5 ? " / 8)" : " / 4)");
}

std::vector<int8_t> UnpackWeights(const uint8_t* packed, int64_t bits, int64_t k, int64_t columns,
                                  const uint8_t* multipliers, int64_t group_size, int64_t codebook,
                                  int64_t wide_columns) {
  const int64_t half = (columns + 1) / 2;
  const int64_t row = PackedRow(columns, bits, wide_columns);
  const int64_t wide_half = (wide_columns + 1) / 2;
  const int64_t upper = row - half - wide_half;
  const int64_t upper_bits = bits - kFewestBits;
  std::vector<int64_t> wide_places(static_cast<size_t>(columns), -1);
  if (multipliers != nullptr) {
    const int64_t groups = GroupCount(k, group_size);
    wide_places = WidePlaces(multipliers, groups, columns, wide_columns);
    CheckMultipliers(multipliers, groups, columns, codebook, wide_places);
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
      const int64_t wide = wide_places[static_cast<size_t>(column)];
      if (wide >= 0) {
        const uint8_t both = packed[(i + 1) * row - wide_half + wide % wide_half];
        const int high = wide < wide_half ? both & 15 : both >> 4;
        number += (high << bits) + (1 << (bits - 1)) - 128;
        multiplier = 1;
      } else if (codebook == kUneven) {
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
