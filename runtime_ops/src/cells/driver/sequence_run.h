#ifndef RNNQC_CELLS_DRIVER_SEQUENCE_RUN_H_
#define RNNQC_CELLS_DRIVER_SEQUENCE_RUN_H_

#include <algorithm>
#include <cstdint>

#include "cells/driver/matmul.h"
#include "cells/driver/sequence_driver.h"
#include "threads/team.h"

namespace rnnqc {

// The arithmetic of tables: codes and projection of the input, products of the hidden codes. A subclass has the steps
// of its cell.
//
// The columns of a step may be divided into parts that run at the same time.
class SequenceRun : public SequenceDriver {
 public:
  // With the help of a team whose work is Part(), in at most `most_parts` parts.
  void RunWith(Team* team, int64_t most_parts);

  static void Part(void* self, int64_t part, int64_t parts) { static_cast<SequenceRun*>(self)->DoPart(part, parts); }

 protected:
  SequenceRun(const CellConfig& config, const KernelTable& kernels, const PackedCell& packed, const CellArgs& args,
              int64_t first, int64_t stride);
  ~SequenceRun() = default;

  // Blocks, of units or of columns.
  struct Blocks {
    int64_t begin;
    int64_t end;
  };

  // A matrix that multiplies hidden codes at each step.
  struct Product {
    const PackedMatrix& matrix;
    int64_t gates;
    const float* multiplier;
    const uint8_t* codes;  // `h_planes_` rows of units_padded_ for each row
    const int32_t* zero_point;
    const float* row_scale;
    int32_t* acc;

    int64_t stride() const { return SumStride(matrix.start.size()); }
  };

  // Implemented by subclasses. InitializeStates() also writes the codes in CodesBefore(0), which represent zero before;
  // RunStep() calls RunPhase one or more times, and does the work of a single thread in between.
  //
  // Does a part of a phase that RunStep requested; it owns these blocks of units and all their columns.
  virtual void DoPhase(int phase, const Blocks& units) = 0;

  void RunPhase(int phase);

  Blocks ColumnBlocks(const Blocks& units, int64_t gates) const;
  Product HiddenProduct() const;
  // Sums of some columns; with 16-bit codes without start values, of both bytes.
  void Multiply(const Product& product, const Blocks& units) const { Multiply(product, units, active_ * h_planes_); }
  // The same for `byte_rows` rows of bytes.
  void Multiply(const Product& product, const Blocks& units, int64_t byte_rows) const;
  // With 16-bit codes: p = the products in pre-activation units + bias; p may be the bias.
  void JoinPlanes(const Product& product, const Blocks& units, const float* bias, int64_t bias_stride, float* p) const;

  // Hidden codes before and after a step: parts of one step read the former while they write the latter.
  uint8_t* CodesBefore(int64_t step) const { return h_[step % 2]; }
  uint8_t* CodesAfter(int64_t step) const { return h_[(step + 1) % 2]; }
  uint8_t* RowOf(uint8_t* codes, int64_t r) const { return codes + r * h_planes_ * units_padded_; }
  // Writes the zero point's bytes for every row of bytes.
  void FillZeroPoints(int64_t zero_point, int32_t* parts) const;
  // Codes of n values, written to one row or, with 16 bits, to two.
  void Quantize(const float* values, int64_t n, float scale, int32_t zero_point, int64_t planes, uint8_t* codes,
                int64_t stride) const;
  // Codes of row r, with the row's own scale, which is kept, or `scale`.
  void QuantizeHidden(int64_t r, const float* values, float scale, int64_t zero_point, uint8_t* codes,
                      float* row_scale) const;
  void QuantizeHidden(int64_t r, const float* values, uint8_t* codes) const;
  // Those of initial_h in CodesBefore(0). `largest` is the largest magnitude of the values, which only rows with
  // scales of their own need.
  void QuantizeInitialRow(int64_t r, const float* values, float largest) const;
  const float* InitialRow(int64_t r) const { return args_.initial_h + sequences_.batch_index(r) * hidden_; }
  // No step follows that would read the codes of this one.
  bool IsLastStep() const { return step_ + 1 == sequences_.length(0); }
  // Codes of all rows before the first step, of initial_h if there is one. The part beyond the bound goes into
  // the first step.
  void QuantizeInitialHidden();
  // Whether initial_h may lie beyond what its codes hold.
  bool MayLose() const {
    return args_.initial_h != nullptr && config_.h_bound > 0 && config_.h_mode == CodeMode::kStatic;
  }
  bool IsBeyond(const float* values) const { return kernels_.max_abs(values, hidden_) > config_.h_bound; }
  // Quantizes the negated loss of row r's codes beyond the bound.
  void QuantizeLoss(int64_t r, const float* values, float unit_scale, int64_t zero) const;
  // Subtracts from p the products of the active rows' losses.
  void TakeLoss(const Product& product, const Blocks& units, float* p) const;
  // n values without NaN and -0, limited to what dynamic rows hold.
  static void LimitHidden(const float* values, int64_t n, float* limited);
  // The same for values within these limits, which only may be NaN.
  static void CopyHidden(const float* values, int64_t n, float* copy);
  // Whether the current step reads weights from the end: the direction alternates.
  bool Descending() const { return (step_ % 2 != 0) != args_.descending; }
  void CopyCodes(int64_t begin, int64_t end) const;

  const PackedCell& packed_;
  const int64_t blocks_;   // of units
  const int64_t columns_;  // in block order
  const int64_t stride_;   // of rows of sums and pre-activations
  const int64_t units_padded_;
  const int64_t x_planes_;
  const int64_t h_planes_;

  // The running step; written by the leader between phases.
  bool first_loses_ = false;  // whether codes of initial_h lose something that the first step takes
  float* p_step_ = nullptr;
  float x_scale_max_ = 1.0f;  // of the running chunk's rows, where they have scales

  int32_t* acc_ = nullptr;
  uint8_t* h_[2] = {};
  int32_t* h_zero_point_ = nullptr;  // of every row of bytes
  float* h_scale_ = nullptr;         // of dynamic rows
  float** y_rows_ = nullptr;         // of the running step
  float* limited_h_ = nullptr;

 private:
  static constexpr int kQuantize = -1;

  void VisitDriverScratch(ScratchPieces& pieces) override;
  void InitializeCodes() override;
  void StartChunk() override;
  void StartStep(int64_t row) override;
  // y_rows_[r] still points to the row of r's last step.
  const float* LastY(int64_t r) const override { return y_rows_[r]; }
  void DoPart(int64_t part, int64_t parts);
  int64_t RowsBefore(int64_t step) const;
  void QuantizeSteps(int64_t begin, int64_t end);
  void QuantizeInput(int64_t position, int64_t row);
  void QuantizeWith(int64_t r, const float* values, float scale, int64_t zero_point, uint8_t* codes) const;
  static void LimitCodes(const CodeRange& range, int64_t n, uint8_t* codes);
  void Project(const Blocks& units) const;
  void ProjectPlanes(int64_t begin, int64_t end, const Blocks& blocks) const;
  void ProjectRows(int64_t begin, int64_t end, const Blocks& blocks) const;
  template <typename Take>
  void MultiplyWideColumns(const PackedMatrix& matrix, const uint8_t* codes, int64_t codes_stride, int64_t byte_rows,
                           const Blocks& blocks, const Take& take) const;
  void AddWideColumns(const Product& product, const Blocks& blocks, int64_t byte_rows) const;

  const int64_t part_blocks_;  // blocks of units that parts consist of: whole blocks of columns
  const int64_t pieces_ = (blocks_ + part_blocks_ - 1) / part_blocks_;
  const int64_t projected_rows_;
  int64_t most_parts_ = 1;
  Team* team_ = nullptr;

  int phase_ = 0;
  bool projects_ = false;  // whether the running phase begins with the chunk's projection
  int64_t chunk_rows_ = 0;

  uint8_t* x_codes_ = nullptr;
  float* x_scale_ = nullptr;
  int32_t* x_zero_point_ = nullptr;  // of every row of bytes
  float* x_scaled_ = nullptr;        // the rows of the chunk times x_factor
  int32_t* x_acc_ = nullptr;
  float* p_ = nullptr;
  int32_t* no_start_ = nullptr;
  float* y_scratch_ = nullptr;
  // Of losses: two rows of codes, of scales and of sums for each row.
  uint8_t* loss_codes_ = nullptr;
  float* loss_scale_ = nullptr;
  int32_t* loss_acc_ = nullptr;
  float* loss_ = nullptr;
};

// Functions that run in every step are inline: a step of a small cell takes less time than a few mispredicted calls.

inline SequenceRun::Blocks SequenceRun::ColumnBlocks(const Blocks& units, int64_t gates) const {
  const auto columns = [gates](int64_t blocks) { return RoundUp(blocks * gates * kBlockUnits, kBlockColumns); };
  return {columns(units.begin) / kBlockColumns, columns(units.end) / kBlockColumns};
}

inline SequenceRun::Product SequenceRun::HiddenProduct() const {
  return {packed_.r,
          config_.gate_count,
          packed_.h_multiplier.data(),
          CodesBefore(step_),
          h_zero_point_,
          config_.h_mode == CodeMode::kDynamicRow ? h_scale_ : nullptr,
          acc_};
}

inline void SequenceRun::Multiply(const Product& product, const Blocks& units, int64_t byte_rows) const {
  const Blocks blocks = ColumnBlocks(units, product.gates);
  RecurrentArgs recurrent{Matmul(product.matrix, product.codes, units_padded_, byte_rows, blocks.begin, blocks.end),
                          product.acc, product.stride()};
  recurrent.matmul.descending = Descending();
  if (h_planes_ == 2) recurrent.matmul.start = no_start_;
  MultiplyRows(kernels_, product.matrix, recurrent);
  if (product.matrix.wide != nullptr) AddWideColumns(product, blocks, byte_rows);
}

inline void SequenceRun::DoPart(int64_t part, int64_t parts) {
  if (phase_ == kQuantize) {
    const int64_t steps = chunk_end_ - chunk_begin_;
    QuantizeSteps(chunk_begin_ + steps * part / parts, chunk_begin_ + steps * (part + 1) / parts);
    return;
  }
  const Blocks units{pieces_ * part / parts * part_blocks_,
                     std::min(pieces_ * (part + 1) / parts * part_blocks_, blocks_)};
  if (projects_) Project(units);
  if (first_loses_ && step_ == 0) TakeLoss(HiddenProduct(), units, p_step_);
  DoPhase(phase_, units);
}

inline void SequenceRun::RunPhase(int phase) {
  phase_ = phase;
  if (team_ == nullptr) {
    DoPart(0, 1);
  } else {
    team_->Run(std::min(most_parts_, team_->Members()));
  }
  if (phase != kQuantize) projects_ = false;
}

}  // namespace rnnqc

#endif  // RNNQC_CELLS_DRIVER_SEQUENCE_RUN_H_
