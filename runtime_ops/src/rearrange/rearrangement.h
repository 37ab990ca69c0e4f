#ifndef RNNQC_REARRANGE_REARRANGEMENT_H_
#define RNNQC_REARRANGE_REARRANGEMENT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rnnqc {

// A loop of a copy: how many elements, and how far apart in the output and in the input.
struct CopyAxis {
  int64_t count;
  int64_t to;
  int64_t from;
};

// Largest number of elements of a tensor; bounds the memory for checking a node.
constexpr int64_t kMaxElements = int64_t{1} << 24;

// Element (i, j, ..) of a box is moved from `from + i * axes[0].from + j * axes[1].from ..` of the input to where `to`
// says the same of the output.
struct BoxCopy {
  size_t output;
  size_t input;
  int64_t to;
  int64_t from;
  std::vector<CopyAxis> axes;
};

// The effect of operators that only move elements of 4 bytes: every element of every output is copied once.
class Rearrangement {
 public:
  // `copies` is the attribute of the operator: output, input, to, from, number of axes, and count, to, from of each
  // axis. Throws std::invalid_argument unless they read inside inputs of `input_sizes` elements and write every element
  // of outputs of `output_sizes` elements once.
  Rearrangement(const std::vector<int64_t>& input_sizes, const std::vector<int64_t>& output_sizes,
                const std::vector<int64_t>& copies);

  // Pointers to the elements of each tensor; null outputs are not computed.
  void Run(const void* const* inputs, void* const* outputs) const;

 private:
  std::vector<BoxCopy> copies_;
};

}  // namespace rnnqc

#endif  // RNNQC_REARRANGE_REARRANGEMENT_H_
