#include "cells/gru_rnn/config.h"

#include <string>

namespace rnnqc {
namespace {

// Arithmetic "tables".
void ValidateTables(const CellConfig& config) {
  ValidateCodes(config);
  for (int64_t gate = 0; gate < config.gate_count; ++gate) {
    CheckGate(config.gates[gate], "[" + std::to_string(gate) + "]");
  }
}

}  // namespace

void ValidateConfig(const GruConfig& config) {
  ValidateSizes(config);
  if (config.is_grid()) {
    const GridUse reset = config.linear_before_reset ? GridUse::kOptional : GridUse::kCodes;
    return ValidateGrid(config, GridUses(config, {reset, GridUse::kOptional, GridUse::kOptional, GridUse::kOptional}));
  }
  ValidateTables(config);
  if (config.linear_before_reset) return;
  CheckScale("reset_scale", config.reset_scale, config.h_mode == CodeMode::kStatic);
  CheckZeroPoint("reset_zero_point", config.reset_zero_point, config.h_bits);
}

void ValidateConfig(const RnnConfig& config) {
  ValidateSizes(config);
  if (config.is_grid()) return ValidateGrid(config, GridUses(config, {}));
  ValidateTables(config);
}

}  // namespace rnnqc
