#ifndef RNNQC_CELLS_DRIVER_SEQUENCE_ROWS_H_
#define RNNQC_CELLS_DRIVER_SEQUENCE_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cells/driver/cell_config.h"
#include "cells/driver/scratch.h"

namespace rnnqc {

// Some sequences of one call: batch indices `first`, `first + stride`, ... Row r is the one that is r-th by decreasing
// length, so that the rows still running at a step are the first `Active(step)` ones.
class SequenceRows {
 public:
  // `lens` [batch] may be null: all have `time` elements.
  SequenceRows(Direction direction, int64_t time, int64_t batch, const int32_t* lens, int64_t first, int64_t stride)
      : direction_(direction),
        time_(time),
        batch_(batch),
        lens_(lens),
        first_(first),
        stride_(stride),
        count_((batch - first + stride - 1) / stride) {}

  void VisitScratch(ScratchPieces& pieces) {
    pieces(order_, count_);
    pieces(lengths_, count_);
  }

  void Sort() {
    for (int64_t r = 0; r < count_; ++r) order_[r] = first_ + r * stride_;
    if (lens_ != nullptr) {
      const int32_t* lens = lens_;
      std::sort(order_, order_ + count_,
                [lens](int64_t a, int64_t b) { return lens[a] != lens[b] ? lens[a] > lens[b] : a < b; });
    }
    for (int64_t r = 0; r < count_; ++r) lengths_[r] = lens_ == nullptr ? time_ : lens_[order_[r]];
  }

  int64_t count() const { return count_; }
  int64_t batch_index(int64_t r) const { return order_[r]; }
  int64_t length(int64_t r) const { return lengths_[r]; }

  int64_t Active(int64_t step) const {
    int64_t rows = count_;
    while (rows > 0 && lengths_[rows - 1] <= step) --rows;
    return rows;
  }

  // Where row r's element of that step lies in X and Y, counted in rows of [time, batch].
  int64_t Position(int64_t step, int64_t r) const {
    const bool sorted = lens_ != nullptr;
    const int64_t b = sorted ? order_[r] : first_ + r * stride_;
    if (direction_ == Direction::kForward) return step * batch_ + b;
    return ((sorted ? lengths_[r] : time_) - 1 - step) * batch_ + b;
  }

  // Fills the padding beyond the ends of the sequences; either pointer may be null.
  void ClearPadding(int64_t hidden, int64_t blank, float* y, uint8_t* codes) const {
    for (int64_t r = 0; r < count_; ++r) {
      for (int64_t t = lengths_[r]; t < time_; ++t) {
        const int64_t offset = (t * batch_ + order_[r]) * hidden;
        if (y != nullptr) std::memset(y + offset, 0, static_cast<size_t>(hidden) * sizeof(float));
        if (codes != nullptr) std::memset(codes + offset, static_cast<int>(blank), static_cast<size_t>(hidden));
      }
    }
  }

 private:
  const Direction direction_;
  const int64_t time_;
  const int64_t batch_;
  const int32_t* const lens_;
  const int64_t first_;
  const int64_t stride_;
  const int64_t count_;
  int64_t* order_ = nullptr;
  int64_t* lengths_ = nullptr;
};

}  // namespace rnnqc

#endif  // RNNQC_CELLS_DRIVER_SEQUENCE_ROWS_H_
