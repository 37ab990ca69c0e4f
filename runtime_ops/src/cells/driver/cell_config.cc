#include "cells/driver/cell_config.h"

#include <algorithm>
#include <cmath>

#include "cells/driver/config_errors.h"
#include "cells/driver/row_format.h"

namespace rnnqc {
namespace {

// Half the largest size of a table: up to there float arithmetic on indices is exact, including halves.
constexpr int64_t kMaxHalfTable = 1 << 22;

void CheckBits(const char* attribute, int64_t value) {
  if (value != 8 && value != 16) FailAttribute(attribute, value, "8 or 16");
}

}  // namespace

void CheckGroupSize(const char* attribute, int64_t value) {
  if (value < 0 || value % kGroupDepth != 0 || value > kMaxDepth) {
    FailAttribute(attribute, value,
                  "a multiple of " + std::to_string(kGroupDepth) + " up to " + std::to_string(kMaxDepth));
  }
}

void CheckScale(const char* attribute, float value, bool needed) {
  if (needed && !(std::isfinite(value) && value > 0)) FailAttribute(attribute, value, "a finite number above 0");
}

void CheckZeroPoint(const char* attribute, int64_t value, int64_t bits) {
  const int64_t largest = bits == 16 ? 65535 : 255;
  if (value < 0 || value > largest) {
    FailAttribute(attribute, value, "a code of " + std::to_string(bits) + " bits, 0 .. " + std::to_string(largest));
  }
}

void CheckFinite(const std::string& attribute, float value) {
  if (!std::isfinite(value)) FailAttribute(attribute, value, "a finite number");
}

void CheckLimits(const GateConfig& gate, const std::string& at) {
  if (std::isnan(gate.min)) FailAttribute("gate_min" + at, gate.min, "a number");
  if (std::isnan(gate.max)) FailAttribute("gate_max" + at, gate.max, "a number");
  if (gate.max < gate.min) FailAttribute("gate_max" + at, gate.max, "at least gate_min" + at);
}

void CheckTableOffset(const GateConfig& gate, const std::string& at) {
  if (gate.table_offset < 0 || gate.table_offset > INT32_MAX) {
    FailAttribute("gate_table_offset" + at, gate.table_offset, "0 or more");
  }
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

void ValidateSizes(const CellConfig& config) {
  if (config.hidden_size < 1 || config.hidden_size > kMaxDepth) {
    FailAttribute("hidden_size", config.hidden_size, "1 .. " + std::to_string(kMaxDepth));
  }
  CheckGroupSize("w_group_size", config.w_group_size);
  CheckGroupSize("r_group_size", config.r_group_size);
}

void ValidateCodes(const CellConfig& config) {
  CheckScale("x_scale", config.x_scale, config.x_mode == CodeMode::kStatic);
  CheckScale("h_scale", config.h_scale, config.h_mode == CodeMode::kStatic);
  CheckBits("x_bits", config.x_bits);
  CheckBits("h_bits", config.h_bits);
  if (config.x_mode == CodeMode::kCodes && config.x_bits != 8)
    FailAttribute("x_bits", config.x_bits, "8 for x_mode codes");
  if (config.x_mode == CodeMode::kRowCodes && config.x_bits != 8)
    FailAttribute("x_bits", config.x_bits, "8 for x_mode row_codes");
  if (!config.has_x_scales()) CheckZeroPoint("x_zero_point", config.x_zero_point, config.x_bits);
  CheckZeroPoint("h_zero_point", config.h_zero_point, config.h_bits);
  if (!(std::isfinite(config.h_bound) && config.h_bound >= 0)) {
    FailAttribute("h_bound", config.h_bound, "a finite number, 0 or more");
  }
}

std::vector<GridUse> GridUses(const CellConfig& config, const std::vector<GridUse>& own) {
  const GridPlaces& places = config.grid.places;
  std::vector<GridUse> uses(static_cast<size_t>(places.own()), GridUse::kOptional);
  uses[GridPlaces::kInput] = uses[GridPlaces::kHidden] = GridUse::kCodes;
  for (int64_t gate = 0; gate < config.gate_count; ++gate)
    uses[static_cast<size_t>(places.acc(gate))] = GridUse::kIndex;
  uses.insert(uses.end(), own.begin(), own.end());
  return uses;
}

void ValidateGrid(const CellConfig& config, const std::vector<GridUse>& uses) {
  if (config.has_x_scales()) {
    FailAttribute("x_mode", config.x_mode == CodeMode::kRowCodes ? "\"row_codes\"" : "\"dynamic_row\"",
                  "\"static\" or \"codes\" for arithmetic \"grid\"");
  }
  const GridConfig& grid = config.grid;
  for (size_t i = 0; i < uses.size(); ++i) {
    ValidatePoint(grid.points[i], static_cast<int64_t>(i), uses[i], config.arithmetic == Arithmetic::kGrid32);
  }
  const int64_t bits = grid.accumulator_bits;
  if (bits != 0 && (bits < 2 || bits > 48)) FailAttribute("accumulator_bits", bits, "0, or 2 .. 48");
  if (config.x_mode == CodeMode::kCodes && grid.input().max > 255) {
    FailAttribute("grid_max[0]", grid.input().max, "up to 255 for x_mode codes");
  }
  for (int64_t gate = 0; gate < config.gate_count; ++gate) {
    if (uses[static_cast<size_t>(grid.places.acc(gate))] == GridUse::kOptional) continue;
    const std::string at = "[" + std::to_string(gate) + "]";
    CheckLimits(config.gates[gate], at);
    CheckTableOffset(config.gates[gate], at);
  }
}

int64_t MaxInputSize(const CellConfig& config) {
  return config.x_mode == CodeMode::kDynamicRow ? kMaxDynamicInputSize : kMaxDepth;
}

int64_t RequiredTableSize(const CellConfig& config, int64_t g) {
  const GateConfig& gate = config.gates[g];
  if (config.is_grid()) return gate.table_offset + config.grid.acc(g).max - config.grid.acc(g).min + 1;
  if (gate.kind == Kind::kTable) return gate.table_offset + static_cast<int64_t>(gate.max) + 1;
  return gate.kind == Kind::kReluTable ? gate.table_offset + gate.index_size : 0;
}

int64_t RequiredGateTableSize(const CellConfig& config) {
  int64_t size = 0;
  for (int64_t g = 0; g < config.gate_count; ++g) size = std::max(size, RequiredTableSize(config, g));
  return size;
}

bool HasTableGates(const CellConfig& config) {
  return std::all_of(config.gates, config.gates + config.gate_count,
                     [](const GateConfig& gate) { return gate.kind == Kind::kTable; });
}

}  // namespace rnnqc
