#ifndef RNNQC_OPS_PACKED_INT4_H_
#define RNNQC_OPS_PACKED_INT4_H_

#include <cstdint>
#include <vector>

namespace rnnqc {

// int8 codes [k, columns] of a matrix packed as int4 [k, half], half = ceil(columns / 2): the lower half of byte (i, j)
// is column j, the upper half column j + half, if there is one, each a number plus 8. With `multipliers`
// [GroupCount(k, group_size), columns] a code is the number times that of its group and column.
//
// Throws std::invalid_argument, naming the place, for a multiplier outside 1 .. kLargestMultiplier and for a code
// outside int8.
std::vector<int8_t> UnpackInt4(const uint8_t* packed, int64_t k, int64_t columns, const uint8_t* multipliers,
                               int64_t group_size);

}  // namespace rnnqc

#endif  // RNNQC_OPS_PACKED_INT4_H_
