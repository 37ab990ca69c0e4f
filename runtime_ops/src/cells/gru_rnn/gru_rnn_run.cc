#include "cells/gru_rnn/gru_rnn_run.h"

#include <algorithm>

namespace rnnqc {
namespace {

bool HasOptions(const CellConfig& config) {
  return !HasTableGates(config) || config.h_mode == CodeMode::kDynamicRow || config.h_bits == 16;
}

// Of a gate; null if it uses none.
const float* TableOf(const CellConfig& config, int64_t gate, const float* gate_table) {
  return RequiredTableSize(config, gate) == 0 ? nullptr : gate_table + config.gates[gate].table_offset;
}

}  // namespace

HiddenRun::HiddenRun(const CellConfig& config, const KernelTable& kernels, const PackedCell& packed,
                     const CellArgs& args, int64_t first, int64_t stride)
    : SequenceRun(config, kernels, packed, args, first, stride), has_options_(HasOptions(config)) {}

void HiddenRun::VisitScratch(ScratchPieces& pieces) {
  pieces(joined_, h_planes_ == 1 && !MayLose() ? 0 : rows_ * stride_);
  pieces(no_bias_, h_planes_ == 1 ? 0 : columns_);
}

void HiddenRun::PrepareSteps() {
  step_args_.units = hidden_;
  step_args_.p_stride = stride_;
  for (int64_t g = 0; g < config_.gate_count; ++g) {
    const GateConfig& gate = config_.gates[g];
    step_args_.gate_min[g] = gate.min;
    step_args_.gate_max[g] = gate.max;
    step_args_.gate_table[g] = TableOf(config_, g, args_.gate_table);
    options_.gates[g] = {gate.kind, gate.alpha, gate.beta, gate.index_scale, static_cast<int32_t>(gate.index_size)};
  }
  step_args_.linear = args_.linear;
  step_args_.state_stride = units_padded_;
  step_args_.y = y_rows_;
  step_args_.h_stride = units_padded_;
  options_.products = joined_;
  options_.reset = reset_;
  if (h_planes_ == 1) {
    options_.products = nullptr;
  } else {
    // Adding -0 changes nothing.
    std::fill(no_bias_, no_bias_ + columns_, -0.0f);
  }
}

void HiddenRun::MultiplyAndStep(HiddenCellFn* kernel, const Product& product, const Target& target,
                                const Blocks& units) const {
  Multiply(product, units);
  if (h_planes_ == 2) JoinPlanes(product, units, no_bias_, 0, joined_);
  if (loses_) {
    if (h_planes_ == 1) ScaleSums(product, units);
    TakeLoss(product, units, joined_);
  }
  HiddenCellArgs step = step_args_;
  step.rows = active_;
  step.block_begin = units.begin;
  step.block_end = units.end;
  step.acc = product.acc;
  step.acc_stride = product.stride();
  step.h_multiplier = product.multiplier;
  step.p = p_step_;
  step.h_scale = target.scale;
  step.h_reciprocal = target.reciprocal;
  step.h_zero_point = static_cast<int32_t>(target.zero_point);
  step.h = target.codes;
  if (!has_options_ && !loses_) return kernel(step);
  HiddenCellOptions options = options_;
  // Joined products are multiplied already.
  options.row_scale = h_planes_ == 1 ? product.row_scale : nullptr;
  step.options = &options;
  if (loses_) options.products = joined_;
  // For r * h it also needs the values.
  if (kernels_quantize() && !(loses_ && target.values != nullptr)) return kernel(step);
  step.h_zero_point = 0;
  step.h = nullptr;
  kernel(step);
  if (is_dynamic()) return;
  const int64_t begin = units.begin * kBlockUnits;
  const int64_t end = std::min(units.end * kBlockUnits, hidden_);
  for (int64_t r = 0; r < active_; ++r) {
    Quantize(ValuesOf(target, r) + begin, end - begin, target.scale, static_cast<int32_t>(target.zero_point), h_planes_,
             RowOf(target.codes, r) + begin, units_padded_);
  }
}

void HiddenRun::ScaleSums(const Product& product, const Blocks& units) const {
  const Blocks blocks = ColumnBlocks(units, product.gates);
  const int64_t end = blocks.end * kBlockColumns;
  for (int64_t r = 0; r < active_; ++r) {
    const int32_t* acc = product.acc + r * product.stride();
    float* row = joined_ + r * product.stride();
    for (int64_t j = blocks.begin * kBlockColumns; j < end; ++j) {
      row[j] = static_cast<float>(acc[j]) * product.multiplier[j];
    }
  }
}

void HiddenRun::QuantizeRows(const Target& target) const {
  for (int64_t r = 0; r < active_; ++r) {
    QuantizeHidden(r, ValuesOf(target, r), target.scale, target.zero_point, target.codes, target.row_scale);
  }
}

TableExtent GateTablesOf(const CellConfig& config, const float* gate_table) {
  TableExtent tables{};
  tables.gates = config.gate_count;
  for (int64_t g = 0; g < config.gate_count; ++g) {
    if (config.gates[g].kind != Kind::kTable) continue;
    tables.gate_table[g] = TableOf(config, g, gate_table);
    tables.gate_max[g] = config.gates[g].max;
  }
  return tables;
}

}  // namespace rnnqc
