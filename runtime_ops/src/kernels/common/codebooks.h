#ifndef RNNQC_KERNELS_COMMON_CODEBOOKS_H_
#define RNNQC_KERNELS_COMMON_CODEBOOKS_H_

#include <cstdint>

namespace rnnqc {

// Sets of sixteen values, of which an index of four bits chooses one; the first one holds the even values.
constexpr int kSets = 5;
constexpr int kSetSize = 16;
constexpr int8_t kSetValues[kSets][kSetSize] = {
    {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7},
    {-15, -10, -8, -6, -4, -3, -2, -1, 0, 1, 2, 4, 6, 8, 11, 15},
    {-10, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 8, 10},
    {-9, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 8},
    {-8, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 9},
};

// All sets in one table: the values of set s stand at kSetBegin[s] and after it, in an order of their own. Sets that
// share values overlap, so that six bits reach every entry.
constexpr int8_t kSetTable[64] = {
    -9,  8,   -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5,  6,  -8, 7, 9,  // sets 3, 0 and 4
    -15, -10, -8, -6, -4, -3, -2, -1, 0,  1, 2, 4, 6, 8, 11, 15,            // set 1
    -10, -8,  -6, -4, -3, -2, -1, 0,  1,  2, 3, 4, 5, 6, 8,  10,            // set 2
};
constexpr int kSetBegin[kSets] = {2, 19, 35, 0, 3};

// The place of a set's value in that table, counted from the set's first; kSetSize if it has none.
constexpr int PlaceInTable(int set, int value) {
  int place = 0;
  while (place < kSetSize && kSetTable[kSetBegin[set] + place] != value) ++place;
  return place;
}

constexpr bool TableHoldsSets() {
  for (int set = 0; set < kSets; ++set) {
    for (const int value : kSetValues[set]) {
      if (PlaceInTable(set, value) == kSetSize) return false;
    }
  }
  return true;
}
static_assert(TableHoldsSets());

// A byte of a group: its multiplier in the lower bits, its set in the upper ones.
constexpr int kSetShift = 5;
constexpr int kMultiplierMask = (1 << kSetShift) - 1;

// The index of a set's 0. Kernels count indices from it, in two's complement: 0 is the value 0 of every set.
constexpr int ZeroOf(int set) {
  int zero = 0;
  while (kSetValues[set][zero] != 0) ++zero;
  return zero;
}

}  // namespace rnnqc

#endif  // RNNQC_KERNELS_COMMON_CODEBOOKS_H_
