#ifndef RNNQC_CELLS_GRU_CONFIG_H_
#define RNNQC_CELLS_GRU_CONFIG_H_

#include <cstdint>

#include "cells/cell_config.h"

namespace rnnqc {

enum GruGate : int { kUpdateGate = 0, kResetGate = 1, kHiddenGate = 2 };
constexpr int64_t kGruGates = 3;

// The attributes of a QuantGRUCell node.
struct GruConfig : CellConfig {
  GruConfig() : CellConfig(kGruGates) {}

  bool linear_before_reset = false;
  // Codes of r * h; used without linear_before_reset.
  float reset_scale = 0;
  int64_t reset_zero_point = 128;
};

// The attributes of a QuantRNNCell node: one gate and nothing else.
struct RnnConfig : CellConfig {
  RnnConfig() : CellConfig(1) {}
};

// Throw std::invalid_argument, naming the attribute, for values the operators do not allow.
void ValidateConfig(const GruConfig& config);
void ValidateConfig(const RnnConfig& config);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_GRU_CONFIG_H_
