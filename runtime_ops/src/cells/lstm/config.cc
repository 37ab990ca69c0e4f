#include "cells/lstm/config.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cells/driver/config_errors.h"

namespace rnnqc {
namespace {

// Largest magnitude of a quantized cell code; codes beyond the table saturate when they become an index.
constexpr float kLargestCellMax = 0x1p60f;

void ValidateGridNode(const LstmConfig& config) {
  std::vector<GridUse> uses = GridUses(config, {GridUse::kOptional, GridUse::kOptional, GridUse::kIndex});
  if (config.input_forget) uses[static_cast<size_t>(config.grid.places.acc(kForgetGate))] = GridUse::kOptional;
  ValidateGrid(config, uses);
}

}  // namespace

void ValidateConfig(const LstmConfig& config) {
  ValidateSizes(config);
  CheckFinite("one", config.one);
  if (config.is_grid()) return ValidateGridNode(config);
  ValidateCodes(config);
  if (!(std::isfinite(config.cell_scale) && config.cell_scale >= 0)) {
    FailAttribute("cell_scale", config.cell_scale, "a finite number, 0 or more");
  }
  if (config.cell_is_quantized() &&
      !(config.cell_max >= 1 && config.cell_max <= kLargestCellMax && std::floor(config.cell_max) == config.cell_max)) {
    FailAttribute("cell_max", config.cell_max, "a whole number from 1 to 2^60");
  }
  for (int gate = 0; gate < kGates; ++gate) {
    if (config.gate_is_used(gate)) CheckGate(config.gates[gate], "[" + std::to_string(gate) + "]");
  }
  CheckFinite("output_alpha", config.output_alpha);
  CheckFinite("output_beta", config.output_beta);
  CheckFinite("cell_index_scale", config.cell_index_scale);
  if (config.output_kind == Kind::kReluTable && config.cell_is_quantized()) {
    FailAttribute("cell_scale", config.cell_scale, "0 (a float cell) for output_kind relu_table");
  }
}

int64_t RequiredGateTableSize(const LstmConfig& config) {
  int64_t size = 0;
  for (int gate = 0; gate < kGates; ++gate) {
    if (config.gate_is_used(gate)) size = std::max(size, RequiredTableSize(config, gate));
  }
  return size;
}

int64_t RequiredCellTableSize(const LstmConfig& config) {
  if (config.is_grid()) {
    const GridPoint& cell = config.grid.points[LstmGrid::kCell];
    return cell.max - cell.min + 1;
  }
  if (config.output_kind != Kind::kTable && config.output_kind != Kind::kReluTable) return 0;
  return 2;
}

}  // namespace rnnqc
