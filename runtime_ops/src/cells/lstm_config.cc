#include "cells/lstm_config.h"

#include <cmath>

#include "cells/config_errors.h"

namespace rnnqc {
namespace {

// Half the largest size of a table: arithmetic on indices is exact in float up to there, with half codes.
constexpr int64_t kMaxHalfTable = 1 << 22;
// Largest magnitude of a quantized cell code; codes beyond the table saturate when they become an index.
constexpr float kLargestCellMax = 0x1p60f;
// The function body takes the rows' zero points into its integer product as further columns, so it ends before
// kMaxDepth.
constexpr int64_t kMaxDynamicInputSize = 65024;

void CheckScale(const char* attribute, float value, bool needed) {
  if (needed && !(std::isfinite(value) && value > 0)) FailAttribute(attribute, value, "a finite number above 0");
}

void CheckBits(const char* attribute, int64_t value) {
  if (value != 8 && value != 16) FailAttribute(attribute, value, "8 or 16");
}

void CheckZeroPoint(const char* attribute, int64_t value, int64_t bits) {
  const int64_t largest = bits == 16 ? 65535 : 255;
  if (value < 0 || value > largest) {
    FailAttribute(attribute, value, "a code of " + std::to_string(bits) + " bits, 0 .. " + std::to_string(largest));
  }
}

void CheckGroupSize(const char* attribute, int64_t value) {
  if (value < 0 || value % kGroupDepth != 0 || value > kMaxDepth) {
    FailAttribute(attribute, value,
                  "a multiple of " + std::to_string(kGroupDepth) + " up to " + std::to_string(kMaxDepth));
  }
}

void CheckFinite(const std::string& attribute, float value) {
  if (!std::isfinite(value)) FailAttribute(attribute, value, "a finite number");
}

void CheckTableOffset(const GateConfig& gate, const std::string& at) {
  if (gate.table_offset < 0 || gate.table_offset > INT32_MAX) {
    FailAttribute("gate_table_offset" + at, gate.table_offset, "0 or more");
  }
}

void CheckLimits(const GateConfig& gate, const std::string& at) {
  if (std::isnan(gate.min)) FailAttribute("gate_min" + at, gate.min, "a number");
  if (std::isnan(gate.max)) FailAttribute("gate_max" + at, gate.max, "a number");
  if (gate.max < gate.min) FailAttribute("gate_max" + at, gate.max, "at least gate_min" + at);
}

void CheckGate(const GateConfig& gate, const std::string& at) {
  CheckLimits(gate, at);
  CheckFinite("gate_alpha" + at, gate.alpha);
  CheckFinite("gate_beta" + at, gate.beta);
  if (gate.kind == Kind::kTable) {
    if (gate.min < 0) FailAttribute("gate_min" + at, gate.min, "0 or more for kind table");
    if (gate.max >= static_cast<float>(2 * kMaxHalfTable))
      FailAttribute("gate_max" + at, gate.max, "less than 2^23 for kind table");
  }
  if (gate.kind == Kind::kReluTable) {
    CheckFinite("gate_index_scale" + at, gate.index_scale);
    if (gate.index_size < 2 || gate.index_size % 2 != 0 || gate.index_size > kMaxHalfTable) {
      FailAttribute("gate_index_size" + at, gate.index_size, "an even number from 2 to 2^22 for kind relu_table");
    }
  }
  if (gate.kind == Kind::kTable || gate.kind == Kind::kReluTable) CheckTableOffset(gate, at);
}

// What both arithmetics have.
void ValidateCommon(const LstmConfig& config) {
  if (config.hidden_size < 1 || config.hidden_size > kMaxDepth) {
    FailAttribute("hidden_size", config.hidden_size, "1 .. " + std::to_string(kMaxDepth));
  }
  CheckFinite("one", config.one);
  CheckGroupSize("w_group_size", config.w_group_size);
  CheckGroupSize("r_group_size", config.r_group_size);
}

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
  ValidateCommon(config);
  if (config.is_grid()) return ValidateGridNode(config);
  CheckScale("x_scale", config.x_scale, config.x_mode == CodeMode::kStatic);
  CheckScale("h_scale", config.h_scale, config.h_mode == CodeMode::kStatic);
  CheckBits("x_bits", config.x_bits);
  CheckBits("h_bits", config.h_bits);
  if (config.x_mode == CodeMode::kCodes && config.x_bits != 8)
    FailAttribute("x_bits", config.x_bits, "8 for x_mode codes");
  if (config.x_mode != CodeMode::kDynamicRow) CheckZeroPoint("x_zero_point", config.x_zero_point, config.x_bits);
  CheckZeroPoint("h_zero_point", config.h_zero_point, config.h_bits);
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

int64_t MaxInputSize(const LstmConfig& config) {
  return config.x_mode == CodeMode::kDynamicRow ? kMaxDynamicInputSize : kMaxDepth;
}

int64_t RequiredGateTableSize(const LstmConfig& config) {
  int64_t size = 0;
  for (int g = 0; g < kGates; ++g) {
    const GateConfig& gate = config.gates[g];
    int64_t end = 0;
    if (!config.gate_is_used(g)) continue;
    if (config.is_grid()) {
      const GridPoint& acc = config.grid.points[GridOrder::kAcc + g];
      end = gate.table_offset + acc.max - acc.min + 1;
    } else if (gate.kind == Kind::kTable)
      end = gate.table_offset + static_cast<int64_t>(gate.max) + 1;
    if (gate.kind == Kind::kReluTable) end = gate.table_offset + gate.index_size;
    size = end > size ? end : size;
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
