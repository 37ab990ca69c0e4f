#include "cells/fixed_point/byte_cell.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cells/driver/division.h"
#include "cells/driver/sequence_run.h"

namespace rnnqc {
namespace {

class ByteRun final : public SequenceRun {
 public:
  ByteRun(const LstmConfig& config, const KernelTable& kernels, const PackedByteCell& packed, const LstmArgs& args,
          int64_t first, int64_t stride)
      : SequenceRun(config, kernels, packed, args, first, stride),
        cell_scale_(config.cell_scale),
        weights_(packed),
        call_(args) {}

 private:
  void VisitScratch(ScratchPieces& pieces) override { pieces(c_, rows_ * units_padded_); }

  void InitializeStates() override {
    std::fill(c_, c_ + rows_ * units_padded_, int8_t{0});
    QuantizeInitialHidden();
    for (int64_t r = 0; r < (call_.initial_c == nullptr ? 0 : rows_); ++r) InitialCells(r);
    PrepareCells();
  }

  void InitialCells(int64_t r) {
    const float* values = call_.initial_c + sequences_.batch_index(r) * hidden_;
    int8_t* c = c_ + r * units_padded_;
    const float low = weights_.form.cell.low;
    const float high = weights_.form.cell.high;
    for (int64_t unit = 0; unit < hidden_; ++unit) {
      const float multiple = values[unit] == values[unit] ? values[unit] / cell_scale_ : 0.0f;
      c[unit] = static_cast<int8_t>(std::nearbyint(std::min(std::max(multiple, low), high)));
    }
  }

  // What is the same in all steps.
  void PrepareCells() {
    cell_.units = hidden_;
    cell_.acc = acc_;
    cell_.acc_stride = stride_;
    cell_.p_stride = stride_;
    cell_.h_multiplier = packed_.h_multiplier.data();
    cell_.bias = weights_.last_bias.data();
    cell_.form = &weights_.form;
    cell_.c = c_;
    cell_.c_stride = units_padded_;
    cell_.y = y_rows_;
    cell_.h_stride = units_padded_;
  }

  void RunStep() override { RunPhase(0); }

  void DoPhase(int, const Blocks& units) override {
    Multiply(HiddenProduct(), units);
    GridBytesArgs cell = cell_;
    cell.rows = active_;
    cell.block_begin = units.begin;
    cell.block_end = units.end;
    cell.p = p_step_;
    cell.h = CodesAfter(step_);
    kernels_.grid_bytes(cell);
    CopyCodes(units.begin * kBlockUnits, std::min(units.end * kBlockUnits, hidden_));
  }

  void WriteFinalStates() override {
    if (call_.y_c == nullptr) return;
    for (int64_t r = 0; r < rows_; ++r) {
      float* y_c = call_.y_c + sequences_.batch_index(r) * hidden_;
      const int8_t* c = c_ + r * units_padded_;
      const float scale = sequences_.length(r) == 0 ? 0.0f : cell_scale_;
      for (int64_t unit = 0; unit < hidden_; ++unit) y_c[unit] = static_cast<float>(c[unit]) * scale + 0.0f;
    }
  }

  const float cell_scale_;
  const PackedByteCell& weights_;
  const LstmArgs& call_;
  GridBytesArgs cell_{};
  int8_t* c_ = nullptr;
};

}  // namespace

PackedByteCell PackByteCell(const LstmConfig& config, const KernelTable& kernels, const CellParameters& parameters,
                            const GridBytes& form) {
  const int64_t hidden = config.hidden_size;
  const std::vector<float> zeros(static_cast<size_t>(kGates * hidden), 0.0f);
  PackedByteCell packed;
  packed.w = PackInputWeights(config, kernels, parameters.w);
  packed.r = PackHiddenWeights(config, kernels, parameters.r, config.h_zero_point);
  packed.x_multiplier = PackedColumns(parameters.x_multiplier, kGates, hidden);
  packed.bias = PackedColumns(zeros.data(), kGates, hidden);
  packed.h_multiplier = PackedColumns(parameters.h_multiplier, kGates, hidden);
  packed.last_bias = PackedColumns(parameters.bias, kGates, hidden);
  packed.form = form;
  return packed;
}

void RunByteCell(const LstmConfig& config, const KernelTable& kernels, const PackedByteCell& packed,
                 const LstmArgs& args, Scratch* scratch, Parallel* parallel) {
  const Division division =
      Divide(config, kernels, packed, packed.r.bytes(), packed.r.start.size(), args, scratch->members());
  RunDivided(
      division, [&](int64_t first, int64_t stride) { return ByteRun(config, kernels, packed, args, first, stride); },
      scratch, parallel);
}

}  // namespace rnnqc
