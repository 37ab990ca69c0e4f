#include "cells/gru_config.h"

#include <string>

namespace rnnqc {
namespace {

void ValidateCell(const CellConfig& config) {
  ValidateSizes(config);
  ValidateCodes(config);
  for (int64_t gate = 0; gate < config.gate_count; ++gate) {
    CheckGate(config.gates[gate], "[" + std::to_string(gate) + "]");
  }
}

}  // namespace

void ValidateConfig(const GruConfig& config) {
  ValidateCell(config);
  if (config.linear_before_reset) return;
  CheckScale("reset_scale", config.reset_scale, config.h_mode == CodeMode::kStatic);
  CheckZeroPoint("reset_zero_point", config.reset_zero_point, config.h_bits);
}

void ValidateConfig(const RnnConfig& config) { ValidateCell(config); }

}  // namespace rnnqc
