#ifndef RNNQC_CELLS_DRIVER_CELL_CONFIG_H_
#define RNNQC_CELLS_DRIVER_CELL_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cells/fixed_point/config.h"
#include "kernels/common/activation.h"
#include "kernels/common/packing.h"

namespace rnnqc {

enum class Direction { kForward, kReverse };
// kRowCodes: int8 rows of an embedding, with a scale each.
enum class CodeMode { kDynamicRow, kStatic, kCodes, kRowCodes };
// kGrid32: the arithmetic "grid" in binary32, with the bias after the sum of both products.
enum class Arithmetic { kTables, kGrid, kGrid32 };

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

// The range of a quantizer's 8-bit codes.
struct CodeRange {
  uint8_t low = 0;
  uint8_t high = UINT8_MAX;
};

// The attributes that all operators have.
struct CellConfig {
  explicit CellConfig(int64_t count) : gate_count(count), grid(count) {}

  int64_t gate_count;
  int64_t hidden_size = 0;
  Direction direction = Direction::kForward;
  CodeMode x_mode = CodeMode::kDynamicRow;
  float x_scale = 0;
  int64_t x_zero_point = 128;
  CodeMode h_mode = CodeMode::kStatic;
  float h_scale = 0;
  int64_t h_zero_point = 128;
  // Magnitude of states up to which static codes hold the states of later steps, too; 0 if it is not known.
  float h_bound = 0;
  GateConfig gates[kGates];  // the first gate_count ones
  int64_t w_group_size = 0;  // rows of packed W that share a multiplier; 0 without
  int64_t r_group_size = 0;
  int64_t w_bits = 4;  // of the numbers of packed W
  int64_t r_bits = 4;
  int64_t w_codebook = 0;  // which values the groups of packed W have: 1 for sets that they choose
  int64_t r_codebook = 0;
  int64_t w_wide_columns = 0;  // how many columns of packed W in groups have 8 bits
  int64_t r_wide_columns = 0;
  bool y_direction_axis = false;      // Y is [T, 1, B, H]
  bool state_direction_axis = false;  // initial and last states are [1, B, H]
  int64_t x_bits = 8;
  int64_t h_bits = 8;
  CodeRange x_codes;  // of static codes of 8 bits
  CodeRange h_codes;
  // With kGrid and kGrid32 bits, zero points, scales and codes of x and h follow from `grid`; of the gates' members
  // min, max and table_offset count, and scales and kinds do not.
  Arithmetic arithmetic = Arithmetic::kTables;
  GridConfig grid;

  // Whether each row of the input has a scale.
  bool has_x_scales() const { return x_mode == CodeMode::kDynamicRow || x_mode == CodeMode::kRowCodes; }
  bool is_grid() const { return arithmetic != Arithmetic::kTables; }
};

// The functions below throw std::invalid_argument, naming the attribute, for values the operators do not allow.

void CheckScale(const char* attribute, float value, bool needed);
void CheckGroupSize(const char* attribute, int64_t value);
void CheckZeroPoint(const char* attribute, int64_t value, int64_t bits);
void CheckFinite(const std::string& attribute, float value);
void CheckLimits(const GateConfig& gate, const std::string& at);
void CheckTableOffset(const GateConfig& gate, const std::string& at);
void CheckGate(const GateConfig& gate, const std::string& at);

// hidden_size and the groups, which every arithmetic has.
void ValidateSizes(const CellConfig& config);
// The other attributes of arithmetic "tables", except those of gates.
void ValidateCodes(const CellConfig& config);
// The other attributes of arithmetic "grid". Gates whose `uses[places.acc(gate)]` is kOptional are not used.
void ValidateGrid(const CellConfig& config, const std::vector<GridUse>& uses);
// The uses of all quantizers; `own` are those of quantizers that only this type of cell has.
std::vector<GridUse> GridUses(const CellConfig& config, const std::vector<GridUse>& own);

// Largest input size the operators allow.
int64_t MaxInputSize(const CellConfig& config);

// Entries of gate_table that a gate needs; 0 if it does not use the table. With at least this size no look-up is
// out of range.
int64_t RequiredTableSize(const CellConfig& config, int64_t gate);
// The same for all gates.
int64_t RequiredGateTableSize(const CellConfig& config);

// Whether all gates have kind table.
bool HasTableGates(const CellConfig& config);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_DRIVER_CELL_CONFIG_H_
