#include "cells/driver/sequence_driver.h"

#include <algorithm>
#include <cstring>

namespace rnnqc {

void SequenceDriver::VisitAllScratch(ScratchPieces& pieces) {
  sequences_.VisitScratch(pieces);
  VisitDriverScratch(pieces);
  VisitScratch(pieces);
}

int64_t SequenceDriver::ScratchBytes() {
  ScratchPieces pieces(nullptr);
  VisitAllScratch(pieces);
  return pieces.bytes();
}

void SequenceDriver::TakeScratch(uint8_t* memory) {
  ScratchPieces pieces(memory);
  VisitAllScratch(pieces);
}

void SequenceDriver::TakeScratch(Scratch* scratch) {
  scratch->Take([this](ScratchPieces& pieces) { VisitAllScratch(pieces); });
}

void SequenceDriver::Run() {
  sequences_.Sort();
  InitializeCodes();
  InitializeStates();
  const int64_t steps = sequences_.length(0);
  for (chunk_begin_ = 0; chunk_begin_ < steps; chunk_begin_ += chunk_steps_) {
    chunk_end_ = std::min(chunk_begin_ + chunk_steps_, steps);
    StartChunk();
    int64_t row = 0;
    for (step_ = chunk_begin_; step_ < chunk_end_; ++step_) {
      active_ = sequences_.Active(step_);
      StartStep(row);
      RunStep();
      row += active_;
    }
  }
  if (has_lengths()) ForgetSignsOfZeros();
  WriteLastHidden();
  WriteFinalStates();
  sequences_.ClearPadding(hidden_, config_.h_zero_point, args_.y, args_.y_codes);
}

// With lengths, results go through a selection that loses the sign of zero.
void SequenceDriver::ForgetSignsOfZeros() const {
  for (int64_t r = 0; r < rows_; ++r) {
    for (int64_t t = 0; t < (args_.y != nullptr ? sequences_.length(r) : 0); ++t) {
      float* row = args_.y + (t * args_.batch + sequences_.batch_index(r)) * hidden_;
      for (int64_t unit = 0; unit < hidden_; ++unit) row[unit] += 0.0f;
    }
  }
}

void SequenceDriver::WriteLastHidden() const {
  if (args_.y_h == nullptr) return;
  for (int64_t r = 0; r < rows_; ++r) {
    float* y_h = args_.y_h + sequences_.batch_index(r) * hidden_;
    if (!has_lengths()) {
      std::memcpy(y_h, LastY(r), static_cast<size_t>(hidden_) * sizeof(float));
    } else if (sequences_.length(r) == 0) {
      std::fill(y_h, y_h + hidden_, 0.0f);
    } else {
      const float* y = LastY(r);
      for (int64_t unit = 0; unit < hidden_; ++unit) y_h[unit] = y[unit] + 0.0f;
    }
  }
}

}  // namespace rnnqc
