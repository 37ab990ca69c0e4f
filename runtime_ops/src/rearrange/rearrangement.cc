#include "rearrange/rearrangement.h"

#include <cstring>
#include <stdexcept>
#include <string>

namespace rnnqc {
namespace {

using Element = uint32_t;

constexpr int64_t kMaxAxes = 8;

[[noreturn]] void Fail(const std::string& what) { throw std::invalid_argument("attribute copies: " + what); }

// Reads numbers one after the other.
class Reader {
 public:
  explicit Reader(const std::vector<int64_t>& numbers) : numbers_(numbers) {}

  bool AtEnd() const { return next_ == numbers_.size(); }

  // A number in low .. high.
  int64_t Next(const char* name, int64_t low, int64_t high) {
    if (AtEnd()) Fail("it ends within a copy, where " + std::string(name) + " is expected");
    const int64_t number = numbers_[next_++];
    if (number >= low && number <= high) return number;
    Fail("number " + std::to_string(next_ - 1) + " (" + name + ") is " + std::to_string(number) + ", expected " +
         std::to_string(low) + " .. " + std::to_string(high));
  }

 private:
  const std::vector<int64_t>& numbers_;
  size_t next_ = 0;
};

// Whether the least and the largest of start + i * stride stay inside a tensor, for i < count of all axes.
bool StaysInside(int64_t start, const std::vector<CopyAxis>& axes, int64_t CopyAxis::* stride, int64_t size) {
  int64_t least = start;
  int64_t largest = start;
  for (const CopyAxis& axis : axes) {
    // Counts and strides are at most kMaxElements: no product or sum of eight overflows.
    const int64_t last = (axis.count - 1) * (axis.*stride);
    (last < 0 ? least : largest) += last;
  }
  return least >= 0 && largest < size;
}

// Calls visit(place in the output) for every element of a copy.
template <typename Visit>
void EachPlace(const BoxCopy& copy, size_t axis, int64_t to, const Visit& visit) {
  if (axis == copy.axes.size()) {
    visit(to);
    return;
  }
  for (int64_t i = 0; i < copy.axes[axis].count; ++i) EachPlace(copy, axis + 1, to + i * copy.axes[axis].to, visit);
}

void CopyRow(const CopyAxis& axis, const Element* from, Element* to) {
  constexpr int64_t kFew = 16;  // below, a call of memcpy takes longer
  if (axis.to == 1 && axis.from == 1) {
    if (axis.count >= kFew) {
      std::memcpy(to, from, static_cast<size_t>(axis.count) * sizeof(Element));
      return;
    }
    for (int64_t i = 0; i < axis.count; ++i) to[i] = from[i];
  } else if (axis.to == 1) {
    for (int64_t i = 0; i < axis.count; ++i) to[i] = from[i * axis.from];
  } else {
    for (int64_t i = 0; i < axis.count; ++i) to[i * axis.to] = from[i * axis.from];
  }
}

void CopyBox(const CopyAxis* axes, size_t count, const Element* from, Element* to) {
  if (count == 0) {
    *to = *from;
  } else if (count == 1) {
    CopyRow(axes[0], from, to);
  } else {
    for (int64_t i = 0; i < axes[0].count; ++i) {
      CopyBox(axes + 1, count - 1, from + i * axes[0].from, to + i * axes[0].to);
    }
  }
}

}  // namespace

Rearrangement::Rearrangement(const std::vector<int64_t>& input_sizes, const std::vector<int64_t>& output_sizes,
                             const std::vector<int64_t>& copies) {
  std::vector<std::vector<bool>> written;
  for (const int64_t size : output_sizes) written.emplace_back(static_cast<size_t>(size), false);
  Reader numbers(copies);
  while (!numbers.AtEnd()) {
    BoxCopy copy{};
    copy.output = static_cast<size_t>(numbers.Next("output", 0, static_cast<int64_t>(output_sizes.size()) - 1));
    copy.input = static_cast<size_t>(numbers.Next("input", 0, static_cast<int64_t>(input_sizes.size()) - 1));
    copy.to = numbers.Next("first element of the output", 0, kMaxElements);
    copy.from = numbers.Next("first element of the input", 0, kMaxElements);
    const int64_t axes = numbers.Next("number of axes", 0, kMaxAxes);
    for (int64_t i = 0; i < axes; ++i) {
      CopyAxis axis{};
      axis.count = numbers.Next("count", 1, kMaxElements);
      axis.to = numbers.Next("distance in the output", -kMaxElements, kMaxElements);
      axis.from = numbers.Next("distance in the input", -kMaxElements, kMaxElements);
      copy.axes.push_back(axis);
    }
    const std::string number = "copy " + std::to_string(copies_.size());
    if (!StaysInside(copy.to, copy.axes, &CopyAxis::to, output_sizes[copy.output])) {
      Fail(number + " writes outside of output " + std::to_string(copy.output) + ", which has " +
           std::to_string(output_sizes[copy.output]) + " elements");
    }
    if (!StaysInside(copy.from, copy.axes, &CopyAxis::from, input_sizes[copy.input])) {
      Fail(number + " reads outside of input " + std::to_string(copy.input) + ", which has " +
           std::to_string(input_sizes[copy.input]) + " elements");
    }
    EachPlace(copy, 0, copy.to, [&](int64_t place) {
      std::vector<bool>::reference here = written[copy.output][static_cast<size_t>(place)];
      if (here) Fail(number + " writes element " + std::to_string(place) + " again");
      here = true;
    });
    copies_.push_back(std::move(copy));
  }
  for (size_t k = 0; k < written.size(); ++k) {
    for (size_t i = 0; i < written[k].size(); ++i) {
      if (!written[k][i]) {
        Fail("none writes element " + std::to_string(i) + " of output " + std::to_string(k));
      }
    }
  }
}

void Rearrangement::Run(const void* const* inputs, void* const* outputs) const {
  for (const BoxCopy& copy : copies_) {
    if (outputs[copy.output] == nullptr) continue;
    const Element* from = static_cast<const Element*>(inputs[copy.input]) + copy.from;
    Element* to = static_cast<Element*>(outputs[copy.output]) + copy.to;
    CopyBox(copy.axes.data(), copy.axes.size(), from, to);
  }
}

}  // namespace rnnqc
