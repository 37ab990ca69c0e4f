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

// The values of the groups of packed weights: kEven, or kUneven, where the upper bits of a multiplier choose a set.
constexpr int64_t kEven = 0;
constexpr int64_t kUneven = 1;

// Throws std::invalid_argument for another codebook, and for kUneven without groups (a size of 0) or with other bits
// than 4.
void CheckCodebook(const char* attribute, int64_t codebook, int64_t bits, int64_t group_size);

// Throws std::invalid_argument for a negative number of wide columns, and for some without groups (a size of 0).
void CheckWideColumns(const char* attribute, int64_t wide_columns, int64_t group_size);

// Bytes of a row of packed weights, and, without wide columns, the same in words for a number of columns that is given
// in words.
int64_t PackedRow(int64_t columns, int64_t bits, int64_t wide_columns = 0);
std::string PackedRowInWords(const std::string& columns, int64_t bits);

// int8 codes [k, columns] of a matrix packed as numbers of `bits` [k, PackedRow(columns, bits, wide_columns)].
//
// The first half = ceil(columns / 2) bytes of row i are nibbles: the lower half of byte (i, j) is column j, the upper
// half column j + half, if there is one. The bytes behind them hold the upper bits, one or two for each column, in
// parts = 8 / (bits - 4) parts from the low bits up: part p of byte (i, half + j) is column j + p * the number of these
// bytes. A number is its nibble and 16 times its upper bits, less 2^(bits - 1). With `multipliers`
// [GroupCount(k, group_size), columns] a code is the number times that of its group and column.
//
// With kUneven the lower five bits of a multiplier are the multiplier and the upper three the number of a set of
// sixteen values (kernels/common/codebooks.h), of which the nibble is an index.
//
// A column all of whose multipliers are 0 is wide: a code is the number's `bits` without a sign, and 2^bits times a
// nibble, less 128. These nibbles stand in PackedRow(wide_columns, 4) bytes at the end of a row, packed as those of a
// matrix of the wide columns.
//
// Throws std::invalid_argument, naming the place, for a multiplier outside 1 .. kLargestMultiplier, for a set that
// there is not, and for a code outside int8; and for another number of columns with multipliers of 0.
std::vector<int8_t> UnpackWeights(const uint8_t* packed, int64_t bits, int64_t k, int64_t columns,
                                  const uint8_t* multipliers, int64_t group_size, int64_t codebook,
                                  int64_t wide_columns = 0);

}  // namespace rnnqc

#endif  // RNNQC_OPS_PACKED_WEIGHTS_H_
