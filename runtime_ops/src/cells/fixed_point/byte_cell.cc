#include "cells/fixed_point/byte_cell.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "cells/driver/sequence_run.h"

namespace rnnqc {
namespace {

struct PackedByteCell : PackedCell {
  AlignedArray<float> last_bias;  // the cell's; `bias` is 0
  GridBytes form;
};

class ByteRun final : public SequenceRun {
 public:
  ByteRun(const LstmConfig& config, const KernelTable& kernels, const PackedByteCell& packed, const CellArgs& args,
          int64_t first, int64_t stride)
      : SequenceRun(config, kernels, packed, args, first, stride), cell_scale_(config.cell_scale), weights_(packed) {}

 private:
  void VisitScratch(ScratchPieces& pieces) override { pieces(c_, rows_ * units_padded_); }

  void InitializeStates() override {
    std::fill(c_, c_ + rows_ * units_padded_, int8_t{0});
    QuantizeInitialHidden();
    for (int64_t r = 0; r < (args_.initial_c == nullptr ? 0 : rows_); ++r) InitialCells(r);
    PrepareCells();
  }

  void InitialCells(int64_t r) {
    const float* values = args_.initial_c + sequences_.batch_index(r) * hidden_;
    int8_t* c = c_ + r * units_padded_;
    const float low = weights_.form.cell.low;
    const float high = weights_.form.cell.high;
    for (int64_t unit = 0; unit < hidden_; ++unit) {
      const float multiple = values[unit] == values[unit] ? values[unit] / cell_scale_ : 0.0f;
      c[unit] = static_cast<int8_t>(std::nearbyint(std::min(std::max(multiple, low), high)));
    }
  }

  // Sets the arguments that are the same in all steps.
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
    if (args_.y_c == nullptr) return;
    for (int64_t r = 0; r < rows_; ++r) {
      float* y_c = args_.y_c + sequences_.batch_index(r) * hidden_;
      const int8_t* c = c_ + r * units_padded_;
      const float scale = sequences_.length(r) == 0 ? 0.0f : cell_scale_;
      for (int64_t unit = 0; unit < hidden_; ++unit) y_c[unit] = static_cast<float>(c[unit]) * scale + 0.0f;
    }
  }

  const float cell_scale_;
  const PackedByteCell& weights_;
  GridBytesArgs cell_{};
  int8_t* c_ = nullptr;
};

}  // namespace

std::unique_ptr<Layer> ByteLayer(const LstmConfig& config, const KernelTable& kernels, const CellParameters& parameters,
                                 const GridBytes& form) {
  const std::vector<float> zeros(static_cast<size_t>(kGates * config.hidden_size), 0.0f);
  CellParameters without_bias = parameters;
  without_bias.bias = zeros.data();
  PackedByteCell packed;
  PackInputSide(config, kernels, without_bias, &packed);
  PackHiddenSide(config, kernels, parameters, &packed);
  packed.last_bias = PackedColumns(parameters.bias, kGates, config.hidden_size);
  packed.form = form;
  return MakeLayer<ByteRun>(config, kernels, std::move(packed));
}

}  // namespace rnnqc
