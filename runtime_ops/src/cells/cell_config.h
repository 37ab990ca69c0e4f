#ifndef RNNQC_CELLS_CELL_CONFIG_H_
#define RNNQC_CELLS_CELL_CONFIG_H_

#include <cstdint>
#include <string>

#include "kernels/activation.h"
#include "kernels/packing.h"

namespace rnnqc {

enum class Direction { kForward, kReverse };
enum class CodeMode { kDynamicRow, kStatic, kCodes };
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

// Codes of 8 bits that a quantizer may give.
struct CodeRange {
  uint8_t low = 0;
  uint8_t high = UINT8_MAX;
};

// The attributes that all operators have.
struct CellConfig {
  explicit CellConfig(int64_t count) : gate_count(count) {}

  int64_t gate_count;
  int64_t hidden_size = 0;
  Direction direction = Direction::kForward;
  CodeMode x_mode = CodeMode::kDynamicRow;
  float x_scale = 0;
  int64_t x_zero_point = 128;
  CodeMode h_mode = CodeMode::kStatic;
  float h_scale = 0;
  int64_t h_zero_point = 128;
  GateConfig gates[kGates];  // the first gate_count ones
  int64_t w_group_size = 0;  // rows of packed W that share a multiplier; 0 without
  int64_t r_group_size = 0;
  bool y_direction_axis = false;      // Y is [T, 1, B, H]
  bool state_direction_axis = false;  // initial and last states are [1, B, H]
  int64_t x_bits = 8;
  int64_t h_bits = 8;
  CodeRange x_codes;  // of static codes of 8 bits
  CodeRange h_codes;
};

// The functions below throw std::invalid_argument, naming the attribute, for values the operators do not allow.

void CheckScale(const char* attribute, float value, bool needed);
void CheckZeroPoint(const char* attribute, int64_t value, int64_t bits);
void CheckFinite(const std::string& attribute, float value);
void CheckLimits(const GateConfig& gate, const std::string& at);
void CheckTableOffset(const GateConfig& gate, const std::string& at);
void CheckGate(const GateConfig& gate, const std::string& at);

// hidden_size and the groups, which also operators of other arithmetics have.
void ValidateSizes(const CellConfig& config);
// The rest but for the gates.
void ValidateCodes(const CellConfig& config);

// Largest input size the operators allow.
int64_t MaxInputSize(const CellConfig& config);

// Entries of gate_table that a gate needs: 0 if it does not use it. With a table of at least that size no look-up is
// out of range.
int64_t RequiredTableSize(const GateConfig& gate);
// Of all gates.
int64_t RequiredGateTableSize(const CellConfig& config);

// Whether all gates have kind table.
bool HasTableGates(const CellConfig& config);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_CELL_CONFIG_H_
