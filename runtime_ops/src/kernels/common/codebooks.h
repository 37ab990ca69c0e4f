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
