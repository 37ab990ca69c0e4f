#include "cells/lstm_config.h"

#include <algorithm>
#include <cmath>

#include "cells/config_errors.h"

namespace rnnqc {
namespace {

// Largest magnitude of a quantized cell code; codes beyond the table saturate when they become an index.
constexpr float kLargestCellMax = 0x1p60f;

void ValidateGridNode(const LstmConfig& config) {
  if (config.x_mode == CodeMode::kDynamicRow) {
    FailAttribute("x_mode", "\"dynamic_row\"", "\"static\" or \"codes\" for arithmetic \"grid\"");
  }
  ValidateGrid(config.grid, !config.input_forget, config.arithmetic == Arithmetic::kGrid32);
  const int64_t largest = config.grid.points[GridOrder::kInput].max;
  if (config.x_mode == CodeMode::kCodes && largest > 255) {
    FailAttribute("grid_max[0]", largest, "up to 255 for x_mode codes");
  }
  for (int gate = 0; gate < kGates; ++gate) {
    if (!config.gate_is_used(gate)) continue;
    const std::string at = "[" + std::to_string(gate) + "]";
    CheckLimits(config.gates[gate], at);
    CheckTableOffset(config.gates[gate], at);
  }
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
  for (int g = 0; g < kGates; ++g) {
    if (!config.gate_is_used(g)) continue;
    int64_t needed = RequiredTableSize(config.gates[g]);
    if (config.is_grid()) {
      const GridPoint& acc = config.grid.points[GridOrder::kAcc + g];
      needed = config.gates[g].table_offset + acc.max - acc.min + 1;
    }
    size = std::max(size, needed);
  }
  return size;
}

int64_t RequiredCellTableSize(const LstmConfig& config) {
  if (config.is_grid()) {
    const GridPoint& cell = config.grid.points[GridOrder::kCell];
    return cell.max - cell.min + 1;
  }
  if (config.output_kind != Kind::kTable && config.output_kind != Kind::kReluTable) return 0;
  return 2;
}

}  // namespace rnnqc
