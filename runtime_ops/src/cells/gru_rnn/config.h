#ifndef RNNQC_CELLS_GRU_RNN_CONFIG_H_
#define RNNQC_CELLS_GRU_RNN_CONFIG_H_

#include <cstdint>

#include "cells/driver/cell_config.h"

namespace rnnqc {

enum GruGate : int { kUpdateGate = 0, kResetGate = 1, kHiddenGate = 2 };
constexpr int64_t kGruGates = 3;

struct GruGrid {
  static constexpr int64_t kReset = GridPlaces{kGruGates}.own();
  static constexpr int64_t kKept = kReset + 1;
  static constexpr int64_t kAdded = kKept + 1;
  static constexpr int64_t kState = kAdded + 1;
  static constexpr int64_t kCount = kState + 1;
};

// The attributes of a QuantGRUCell node.
struct GruConfig : CellConfig {
  GruConfig() : CellConfig(kGruGates) {}

  bool linear_before_reset = false;
  // Codes of r * h; used by arithmetic "tables" without linear_before_reset.
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

#endif  // RNNQC_CELLS_GRU_RNN_CONFIG_H_
