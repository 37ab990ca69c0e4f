#include "cells/hidden_run.h"

namespace rnnqc {
namespace {

bool HasTableKernels(const CellConfig& config) {
  return HasTableGates(config) && config.h_mode == CodeMode::kStatic && config.h_bits == 8;
}

}  // namespace

HiddenRun::HiddenRun(const CellConfig& config, const KernelTable& kernels, const PackedCell& packed,
                     const CellArgs& args, int64_t first, int64_t stride)
    : SequenceRun(config, kernels, packed, args, first, stride), table_kernels_(HasTableKernels(config)) {}

void HiddenRun::PrepareSteps() {
  if (!table_kernels_) return;
  step_args_.units = hidden_;
  step_args_.p_stride = columns_;
  for (int64_t g = 0; g < config_.gate_count; ++g) {
    step_args_.gate_min[g] = config_.gates[g].min;
    step_args_.gate_max[g] = config_.gates[g].max;
    step_args_.gate_table[g] = args_.gate_table + config_.gates[g].table_offset;
  }
  step_args_.linear = args_.linear;
  step_args_.h_scale = config_.h_scale;
  step_args_.h_zero_point = static_cast<int32_t>(config_.h_zero_point);
  step_args_.state_stride = units_padded_;
  step_args_.y = y_rows_;
  step_args_.h_stride = units_padded_;
}

HiddenCellArgs HiddenRun::StepOf(const Product& product, const Blocks& units) const {
  HiddenCellArgs step = step_args_;
  step.rows = active_;
  step.block_begin = units.begin;
  step.block_end = units.end;
  step.acc = product.acc;
  step.acc_stride = product.columns();
  step.h_multiplier = product.multiplier;
  step.p = p_step_;
  step.h = CodesAfter(step_);
  return step;
}

HiddenProducts HiddenRun::ProductsOf(const Product& product, int64_t r) const {
  HiddenProducts products{};
  products.acc = product.acc + r * product.columns();
  products.multiplier = product.multiplier;
  if (product.row_scale != nullptr) products.row_scale = product.row_scale + r;
  return products;
}

bool FindGateTables(const CellConfig& config, const float* gate_table, LinearTables* linear) {
  if (!HasTableKernels(config)) return false;
  TableExtent tables{};
  tables.gates = config.gate_count;
  for (int64_t g = 0; g < config.gate_count; ++g) {
    tables.gate_table[g] = gate_table + config.gates[g].table_offset;
    tables.gate_max[g] = config.gates[g].max;
  }
  return FindLinearTables(tables, linear);
}

}  // namespace rnnqc
