#include "rearrange/rearrangement.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/common/compiler.h"

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

// Copies in the places of copies that differ in nothing but their places, which are equally far apart: of the same
// output and input, and with the same axes. They have one more axis.
std::vector<BoxCopy> Joined(std::vector<BoxCopy> copies) {
  const auto axes = [](const CopyAxis& axis) { return std::make_tuple(axis.count, axis.to, axis.from); };
  const auto less = [&axes](const CopyAxis& a, const CopyAxis& b) { return axes(a) < axes(b); };
  const auto before = [&less](const BoxCopy& a, const BoxCopy& b) {
    if (a.output != b.output) return a.output < b.output;
    if (a.input != b.input) return a.input < b.input;
    return std::lexicographical_compare(a.axes.begin(), a.axes.end(), b.axes.begin(), b.axes.end(), less);
  };
  std::stable_sort(copies.begin(), copies.end(), before);
  std::vector<BoxCopy> joined;
  for (size_t first = 0; first < copies.size();) {
    const auto follows = [&](size_t i, int64_t BoxCopy::* place) { return copies[i].*place - copies[i - 1].*place; };
    size_t end = first + 1;
    while (end < copies.size() && !before(copies[first], copies[end]) &&
           follows(end, &BoxCopy::to) == follows(first + 1, &BoxCopy::to) &&
           follows(end, &BoxCopy::from) == follows(first + 1, &BoxCopy::from)) {
      ++end;
    }
    BoxCopy copy = copies[first];
    if (end > first + 1) {
      const auto count = static_cast<int64_t>(end - first);
      copy.axes.insert(copy.axes.begin(),
                       {count, follows(first + 1, &BoxCopy::to), follows(first + 1, &BoxCopy::from)});
    }
    joined.push_back(std::move(copy));
    first = end;
  }
  return joined;
}

// Makes one of the axes the innermost loop: the one whose elements lie together in both tensors, or the longest one.
void ChooseRows(std::vector<CopyAxis>* axes) {
  const auto is_row = [](const CopyAxis& axis) { return axis.to == 1 && axis.from == 1; };
  auto last = std::find_if(axes->begin(), axes->end(), is_row);
  if (last == axes->end()) {
    last = std::max_element(axes->begin(), axes->end(),
                            [](const CopyAxis& a, const CopyAxis& b) { return a.count < b.count; });
  }
  if (last != axes->end()) std::rotate(last, last + 1, axes->end());
}

// Calls copy(from, to) for rows.
template <typename Copy>
void ForEachRow(const CopyAxis& rows, const Element* from, Element* to, const Copy& copy) {
  for (int64_t i = 0; i < rows.count; ++i) copy(from + i * rows.from, to + i * rows.to);
}

// Rows of elements at distances that the compiler knows.
template <int kTo, int kFrom>
void CopyStrided(const CopyAxis& rows, int64_t count, const Element* from, Element* to) {
  ForEachRow(rows, from, to, [count](const Element* row_from, Element* row_to) {
    RNNQC_UNROLL(4)
    for (int64_t i = 0; i < count; ++i) row_to[i * kTo] = row_from[i * kFrom];
  });
}

// Rows of so many elements that lie together.
template <int kCount>
void CopyShort(const CopyAxis& rows, const Element* from, Element* to) {
  ForEachRow(rows, from, to,
             [](const Element* row_from, Element* row_to) { std::memcpy(row_to, row_from, kCount * sizeof(Element)); });
}

void CopyRows(const CopyAxis& rows, const CopyAxis& row, const Element* from, Element* to) {
  constexpr int64_t kFew = 16;  // below, a call of memcpy takes longer
  const int64_t count = row.count;
  if (row.to == 1 && row.from == 1) {
    if (count == 4) return CopyShort<4>(rows, from, to);
    if (count == 8) return CopyShort<8>(rows, from, to);
    if (count < kFew) return CopyStrided<1, 1>(rows, count, from, to);
    return ForEachRow(rows, from, to, [count](const Element* row_from, Element* row_to) {
      std::memcpy(row_to, row_from, static_cast<size_t>(count) * sizeof(Element));
    });
  }
  if (row.to == 1 && row.from == 2) return CopyStrided<1, 2>(rows, count, from, to);
  if (row.to == 2 && row.from == 1) return CopyStrided<2, 1>(rows, count, from, to);
  ForEachRow(rows, from, to, [&row](const Element* row_from, Element* row_to) {
    RNNQC_UNROLL(4)
    for (int64_t i = 0; i < row.count; ++i) row_to[i * row.to] = row_from[i * row.from];
  });
}

void CopyBox(const CopyAxis* axes, size_t count, const Element* from, Element* to) {
  constexpr CopyAxis kOne = {1, 0, 0};
  if (count == 0) {
    *to = *from;
  } else if (count == 1) {
    CopyRows(kOne, axes[0], from, to);
  } else if (count == 2) {
    CopyRows(axes[0], axes[1], from, to);
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
  copies_ = Joined(std::move(copies_));
  for (BoxCopy& copy : copies_) ChooseRows(&copy.axes);
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
