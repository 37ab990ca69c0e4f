#ifndef RNNQC_OPS_PACKED_WEIGHTS_H_
#define RNNQC_OPS_PACKED_WEIGHTS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace rnnqc {

// Widths of the numbers of packed weights.
constexpr int64_t kFewestBits = 4;
constexpr int64_t kMostBits = 6;

// Throws std::invalid_argument for another width.
void CheckPackedBits(const char* attribute, int64_t bits);

// Bytes of a row of packed weights, and the same in words for a number of columns that is given in words.
int64_t PackedRow(int64_t columns, int64_t bits);
std::string PackedRowInWords(const std::string& columns, int64_t bits);

// int8 codes [k, columns] of a matrix packed as numbers of `bits` [k, PackedRow(columns, bits)].
//
// The first half = ceil(columns / 2) bytes of row i are nibbles: the lower half of byte (i, j) is column j, the upper
// half column j + half, if there is one. The bytes behind them hold the upper bits, one or two for each column, in
// parts = 8 / (bits - 4) parts from the low bits up: part p of byte (i, half + j) is column j + p * the number of these
// bytes. A number is its nibble and 16 times its upper bits, less 2^(bits - 1). With `multipliers`
// [GroupCount(k, group_size), columns] a code is the number times that of its group and column.
//
// Throws std::invalid_argument, naming the place, for a multiplier outside 1 .. kLargestMultiplier and for a code
// outside int8.
std::vector<int8_t> UnpackWeights(const uint8_t* packed, int64_t bits, int64_t k, int64_t columns,
                                  const uint8_t* multipliers, int64_t group_size);

}  // namespace rnnqc

#endif  // RNNQC_OPS_PACKED_WEIGHTS_H_
