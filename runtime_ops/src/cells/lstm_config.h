#ifndef RNNQC_CELLS_LSTM_CONFIG_H_
#define RNNQC_CELLS_LSTM_CONFIG_H_

#include <cstdint>
#include <string>

#include "cells/grid_config.h"
#include "kernels/packing.h"

namespace rnnqc {

// Gate order everywhere: i, o, f, c.
enum Gate : int { kInputGate = 0, kOutputGate = 1, kForgetGate = 2, kCellGate = 3 };

// kGrid32: the arithmetic "grid" in binary32, with the bias after the sum of both products.
enum class Arithmetic { kTables, kGrid, kGrid32 };
enum class Direction { kForward, kReverse };
enum class CodeMode { kDynamicRow, kStatic, kCodes };
enum class Kind {
  kTable,
  kReluTable,
  kRelu,
  kLeakyRelu,
  kThresholdedRelu,
  kAffine,
  kHardSigmoid,
  kSoftsign,
};

struct GateConfig {
  Kind kind = Kind::kTable;
  float min = 0;
  float max = 0;
  float alpha = 0;
  float beta = 0;
  int64_t table_offset = 0;
  float index_scale = 0;
  int64_t index_size = 0;
};

// The attributes of a QuantLSTMCell node.
struct LstmConfig {
  int64_t hidden_size = 0;
  Direction direction = Direction::kForward;
  CodeMode x_mode = CodeMode::kDynamicRow;
  float x_scale = 0;
  int64_t x_zero_point = 128;
  CodeMode h_mode = CodeMode::kStatic;
  float h_scale = 0;
  int64_t h_zero_point = 128;
  float cell_scale = 0;
  float cell_max = 32767;
  GateConfig gates[kGates];
  Kind output_kind = Kind::kTable;
  float output_alpha = 0;
  float output_beta = 0;
  float cell_index_scale = 0;
  bool input_forget = false;
  float one = 1;
  int64_t w_group_size = 0;  // rows of packed W that share a multiplier; 0 without
  int64_t r_group_size = 0;
  bool y_direction_axis = false;      // Y is [T, 1, B, H]
  bool state_direction_axis = false;  // initial and last states are [1, B, H]
  int64_t x_bits = 8;
  int64_t h_bits = 8;
  // With kGrid bits, zero points and scales of x, h and the cell follow from `grid`; of the gates' members min, max and
  // table_offset count, and scales and kinds do not.
  Arithmetic arithmetic = Arithmetic::kTables;
  GridConfig grid;

  bool is_grid() const { return arithmetic != Arithmetic::kTables; }
  bool cell_is_quantized() const { return cell_scale > 0; }
  bool gate_is_used(int gate) const { return !(input_forget && gate == kForgetGate); }
};

// Throws std::invalid_argument, naming the attribute, for values the operator does not allow.
void ValidateConfig(const LstmConfig& config);

// Largest input size the operator allows.
int64_t MaxInputSize(const LstmConfig& config);

// Entries of gate_table / cell_table that the configuration needs: 0 if it does not use the table. With a table of at
// least that size no look-up is out of range.
int64_t RequiredGateTableSize(const LstmConfig& config);
int64_t RequiredCellTableSize(const LstmConfig& config);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_LSTM_CONFIG_H_
