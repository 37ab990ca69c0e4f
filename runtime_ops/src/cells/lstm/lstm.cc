#include "cells/lstm/lstm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "cells/driver/sequence_run.h"
#include "cells/lstm/generic_step.h"

namespace rnnqc {
namespace {

// Whether kernels run the step.
bool HasTablesOnly(const LstmConfig& config) {
  return HasTableGates(config) && config.output_kind == Kind::kTable && config.h_mode == CodeMode::kStatic &&
         !config.input_forget;
}

// The largest magnitude, infinite if there is a NaN.
float Largest(const AlignedArray<float>& values) {
  float largest = 0.0f;
  for (int64_t i = 0; i < values.size(); ++i) {
    const float magnitude = std::fabs(values.data()[i]);
    if (!(magnitude <= largest)) largest = std::isnan(magnitude) ? INFINITY : magnitude;
  }
  return largest;
}

// A bound of a matmul with codes in pre-activation units: see PackStartValues.
float Reach(const PackedMatrix& matrix, int64_t bits, const AlignedArray<float>& multiplier) {
  const int64_t code = bits == 16 ? UINT16_MAX : UINT8_MAX;
  return static_cast<float>(code * 128 * matrix.k) * Largest(multiplier);
}

class LstmRun final : public SequenceRun {
 public:
  LstmRun(const LstmConfig& config, const KernelTable& kernels, const PackedLstm& packed, const CellArgs& args,
          int64_t first, int64_t stride)
      : SequenceRun(config, kernels, packed, args, first, stride),
        lstm_(config),
        weights_(packed),
        table_kernel_(HasTablesOnly(config)) {}

 private:
  void VisitScratch(ScratchPieces& pieces) override {
    pieces(no_acc_, h_planes_ == 1 ? 0 : rows_ * stride_);
    pieces(c_, rows_ * units_padded_);
    pieces(h_of_eight_, h_planes_ == 1 ? 0 : rows_ * units_padded_);
    pieces(constants_, kernels_.prepare_cell == nullptr ? 0 : kCellConstantBytes);
  }

  void InitializeStates() override {
    std::fill(c_, c_ + rows_ * units_padded_, 0.0f);
    if (h_planes_ > 1) std::fill(no_acc_, no_acc_ + rows_ * stride_, 0);
    QuantizeInitialHidden();
    for (int64_t r = 0; r < (args_.initial_c == nullptr ? 0 : rows_); ++r) {
      InitialCells(lstm_, args_.initial_c + sequences_.batch_index(r) * hidden_, hidden_, c_ + r * units_padded_);
    }
    if (table_kernel_) PrepareTableCells();
  }

  void RunStep() override {
    if (table_kernel_ && (step_ == chunk_begin_ || (first_loses_ && step_ == 1))) PrepareConstants();
    RunPhase(0);
    if (!table_kernel_) GenericCells();
  }

  void DoPhase(int, const Blocks& units) override {
    const Product product = HiddenProduct();
    Multiply(product, units);
    // With 16-bit codes the products go into the pre-activations, and the cells get none.
    if (h_planes_ == 2) JoinPlanes(product, units, p_step_, stride_, p_step_);
    if (!table_kernel_) return;
    TableCells(units);
    const int64_t begin = units.begin * kBlockUnits;
    const int64_t end = std::min(units.end * kBlockUnits, hidden_);
    if (h_planes_ == 2 && !IsLastStep()) QuantizeUnits(begin, end);
    CopyCodes(begin, end);
  }

  void QuantizeUnits(int64_t begin, int64_t end) const {
    for (int64_t r = 0; r < active_; ++r) {
      Quantize(y_rows_[r] + begin, end - begin, config_.h_scale, static_cast<int32_t>(config_.h_zero_point), h_planes_,
               RowOf(CodesAfter(step_), r) + begin, units_padded_);
    }
  }

  // Sets the arguments that are the same in all steps.
  void PrepareTableCells() {
    cell_.units = hidden_;
    cell_.short_tail = weights_.short_tail;
    cell_.acc = h_planes_ == 2 ? no_acc_ : acc_;
    cell_.acc_stride = stride_;
    cell_.p_stride = stride_;
    cell_.h_multiplier = packed_.h_multiplier.data();
    cell_.peephole = weights_.peephole.data();
    for (int64_t g = 0; g < kGates; ++g) {
      cell_.gate_min[g] = config_.gates[g].min;
      cell_.gate_max[g] = config_.gates[g].max;
      cell_.gate_table[g] = args_.gate_table + config_.gates[g].table_offset;
    }
    cell_.cell_max = lstm_.cell_is_quantized() ? lstm_.cell_max : kLargestMagnitude;
    cell_.cell_index_scale = lstm_.cell_is_quantized() ? 0.0f : lstm_.cell_index_scale;
    cell_.cell_table = args_.cell_table;
    cell_.cell_table_size = static_cast<int32_t>(args_.cell_table_size);
    cell_.linear = args_.linear;
    cell_.h_scale = config_.h_scale;
    cell_.h_reciprocal = weights_.h_reciprocal;
    cell_.h_zero_point = h_planes_ == 2 ? 0 : static_cast<int32_t>(config_.h_zero_point);
    cell_.c = c_;
    cell_.c_stride = units_padded_;
    cell_.y = y_rows_;
    cell_.h_stride = units_padded_;
  }

  // Sets those that the kernel makes of the bounds of the following steps.
  void PrepareConstants() {
    if (kernels_.prepare_cell == nullptr) return;
    cell_.v_max = first_loses_ && step_ == 0 ? INFINITY : weights_.x_reach * x_scale_max_ + weights_.reach;
    kernels_.prepare_cell(cell_, constants_);
    cell_.constants = constants_;
  }

  void TableCells(const Blocks& units) const {
    TableCellArgs cell = cell_;
    cell.rows = active_;
    cell.block_begin = units.begin;
    cell.block_end = units.end;
    cell.p = p_step_;
    cell.h = h_planes_ == 2 ? h_of_eight_ : CodesAfter(step_);
    (weights_.peephole.size() == 0 ? kernels_.table_cell : kernels_.peephole_cell)(cell);
  }

  void GenericCells() {
    for (int64_t r = 0; r < active_; ++r) {
      GenericStepArgs step{};
      step.units = hidden_;
      step.products.acc = (h_planes_ == 2 ? no_acc_ : acc_) + r * stride_;
      step.products.multiplier = packed_.h_multiplier.data();
      if (config_.h_mode == CodeMode::kDynamicRow && h_planes_ == 1) step.products.row_scale = h_scale_ + r;
      step.p = p_step_ + r * stride_;
      step.peephole = weights_.peephole.size() == 0 ? nullptr : weights_.peephole.data();
      step.gate_table = args_.gate_table;
      step.cell_table = args_.cell_table;
      step.cell_table_size = args_.cell_table_size;
      step.c = c_ + r * units_padded_;
      step.y = y_rows_[r];
      GenericStep(lstm_, step);
      if (!IsLastStep() || args_.y_codes != nullptr) QuantizeHidden(r, y_rows_[r], CodesAfter(step_));
    }
    CopyCodes(0, hidden_);
  }

  void WriteFinalStates() override {
    if (args_.y_c == nullptr) return;
    const float scale = lstm_.cell_is_quantized() ? lstm_.cell_scale : 1.0f;
    // As SequenceRun does with the hidden states.
    const float no_sign = has_lengths() ? 0.0f : -0.0f;
    for (int64_t r = 0; r < rows_; ++r) {
      float* y_c = args_.y_c + sequences_.batch_index(r) * hidden_;
      const float* c = c_ + r * units_padded_;
      if (sequences_.length(r) == 0) {
        std::fill(y_c, y_c + hidden_, 0.0f);
      } else {
        for (int64_t unit = 0; unit < hidden_; ++unit) y_c[unit] = (c[unit] + no_sign) * scale;
      }
    }
  }

  const LstmConfig& lstm_;
  const PackedLstm& weights_;
  const bool table_kernel_;

  TableCellArgs cell_{};
  int32_t* no_acc_ = nullptr;
  float* c_ = nullptr;
  uint8_t* constants_ = nullptr;
  uint8_t* h_of_eight_ = nullptr;  // written by the cells and not used with 16-bit codes
};

}  // namespace

std::unique_ptr<Layer> LstmLayer(const LstmConfig& config, const KernelTable& kernels, const CellParameters& given) {
  PackedLstm packed;
  packed.short_tail = kernels.short_tails && HasTablesOnly(config) && given.peephole == nullptr &&
                      MayHaveShortTail(config.hidden_size, kGates);
  CellParameters parameters = given;
  parameters.w.short_tail = parameters.r.short_tail = packed.short_tail;
  PackInputSide(config, kernels, parameters, &packed);
  PackHiddenSide(config, kernels, parameters, &packed);
  packed.x_reach = Reach(packed.w, config.x_bits, packed.x_multiplier);
  packed.reach = Reach(packed.r, config.h_bits, packed.h_multiplier) + Largest(packed.bias);
  if (parameters.peephole != nullptr) {
    packed.peephole = AlignedArray<float>(ColumnCount(config.hidden_size, kGates));
    PackColumns(parameters.peephole, 3, config.hidden_size, packed.peephole.data());
  }
  return MakeLayer<LstmRun>(config, kernels, std::move(packed));
}

TableExtent TablesOf(const LstmConfig& config, const float* gate_table, const float* cell_table,
                     int64_t cell_table_size) {
  TableExtent tables{};
  if (!HasTablesOnly(config)) return tables;
  tables.gates = kGates;
  for (int64_t g = 0; g < kGates; ++g) {
    tables.gate_table[g] = gate_table + config.gates[g].table_offset;
    tables.gate_max[g] = config.gates[g].max;
  }
  tables.cell_table = cell_table;
  tables.cell_table_size = cell_table_size;
  return tables;
}

}  // namespace rnnqc
