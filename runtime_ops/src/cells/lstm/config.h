#ifndef RNNQC_CELLS_LSTM_CONFIG_H_
#define RNNQC_CELLS_LSTM_CONFIG_H_

#include <cstdint>
#include <string>

#include "cells/driver/cell_config.h"
#include "kernels/common/packing.h"

namespace rnnqc {

// Gate order everywhere: i, o, f, c.
enum Gate : int { kInputGate = 0, kOutputGate = 1, kForgetGate = 2, kCellGate = 3 };

// The attributes of a QuantLSTMCell node.
struct LstmConfig : CellConfig {
  LstmConfig() : CellConfig(kGates) {}

  float cell_scale = 0;
  float cell_max = 32767;
  Kind output_kind = Kind::kTable;
  float output_alpha = 0;
  float output_beta = 0;
  float cell_index_scale = 0;
  bool input_forget = false;
  float one = 1;

  bool cell_is_quantized() const { return cell_scale > 0; }
  bool gate_is_used(int gate) const { return !(input_forget && gate == kForgetGate); }
};

// Throws std::invalid_argument, naming the attribute, for values the operator does not allow.
void ValidateConfig(const LstmConfig& config);

// Entries of gate_table / cell_table that the configuration needs: 0 if it does not use the table. With a table of at
// least that size no look-up is out of range.
int64_t RequiredGateTableSize(const LstmConfig& config);
int64_t RequiredCellTableSize(const LstmConfig& config);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_LSTM_CONFIG_H_
