#ifndef RNNQC_CELLS_DRIVER_CELL_RUN_H_
#define RNNQC_CELLS_DRIVER_CELL_RUN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cells/driver/cell_config.h"
#include "kernels/kernel_table.h"

namespace rnnqc {

// Codes of weights as the operators give them. In the fixed-point arithmetic they may be int16, and columns may have
// zero points.
struct WeightMatrix : Matrix {
  const int16_t* wide = nullptr;        // in the place of `weights`
  const int32_t* zero_point = nullptr;  // [gates * units]
};

// Columns of some gates of a matrix, and the memory behind them.
class GateColumns {
 public:
  GateColumns(const WeightMatrix& all, int64_t first, int64_t count);
  GateColumns(const GateColumns&) = delete;
  GateColumns& operator=(const GateColumns&) = delete;
  const WeightMatrix& matrix() const { return matrix_; }

 private:
  WeightMatrix matrix_;
  std::vector<int8_t> weights_;
  std::vector<int16_t> wide_;
  std::vector<uint8_t> multipliers_;
};

// Weights and per-column vectors as the operators give them: W [input_size, gates * H], R [H, gates * H], vectors
// [gates * H]. Null pointers stand for what a cell does not have.
struct CellParameters {
  WeightMatrix w;
  WeightMatrix r;
  const float* x_multiplier;
  const float* h_multiplier;
  const float* bias;
  const float* peephole;     // [3H], LSTM
  const float* hidden_bias;  // [H], GRU with linear_before_reset
};

// How the work of a call is divided; results do not depend on it.
struct Division {
  int64_t groups = 1;  // of rows, each run by one thread at a time
  int64_t parts = 1;   // of the columns of each step, at most
};

// Runs task(user, 0) .. task(user, count - 1), perhaps on several threads, and returns when all are done.
class Parallel {
 public:
  virtual ~Parallel() = default;
  virtual void For(int64_t count, void (*task)(void* user, size_t index), void* user) = 0;
};

// Values of each row of X that follow each other.
struct InputPart {
  const float* data;  // [time, batch, size]
  int64_t size;
};

constexpr size_t kMostParts = 4;

// One call. Null pointers stand for absent inputs and outputs. Tables hold at least the required sizes.
struct CellArgs {
  int64_t time;
  int64_t batch;
  InputPart x_parts[kMostParts];  // the first x_part_count, none of them empty: either these
  size_t x_part_count;
  const float* x_factor;   // [input_size]: what these are multiplied by, or null
  const uint8_t* x_codes;  // or this, for x_mode codes
  const int8_t* x_rows;    // or this, for x_mode row_codes,
  const float* x_scale;    // with these [time, batch]
  const float* gate_table;
  const float* cell_table;  // LSTM only
  int64_t cell_table_size;
  const LinearTables* linear;    // of the tables, or null
  const int32_t* sequence_lens;  // [batch], each 0 .. time
  const float* initial_h;        // [batch, hidden]
  const float* initial_c;        // [batch, hidden]
  float* y;                      // [time, batch, hidden]
  float* y_h;                    // [batch, hidden]
  float* y_c;                    // [batch, hidden]
  uint8_t* y_codes;              // [time, batch, hidden]; static hidden codes only
  bool descending;               // a hint: which way the first step reads weights
};

// The input of one row of X.
struct InputRow {
  InputPart parts[kMostParts];  // [size]
  size_t count;
};

// Reads floats at row `position`; with factors their products go to `scaled` [input_size].
InputRow ReadInput(const CellArgs& args, int64_t position, float* scaled);

struct PackedCell {
  PackedMatrix w;
  PackedMatrix r;
  AlignedArray<float> x_multiplier;
  AlignedArray<float> h_multiplier;  // of the columns of `r`
  AlignedArray<float> bias;
  Reciprocal h_reciprocal;  // of h_scale

  int64_t input_size() const { return w.k; }
  // `members` threads took part in the last call.
  Division Divide(const CellConfig& config, const KernelTable& kernels, const CellArgs& args, int64_t members) const;
};

// How a call is divided. `hidden_bytes` and `hidden_columns` are those of all recurrent matrices; `members` threads
// took part in the last call.
Division Divide(const CellConfig& config, const KernelTable& kernels, const PackedCell& packed, int64_t hidden_bytes,
                int64_t hidden_columns, const CellArgs& args, int64_t members);

// In block order.
AlignedArray<float> PackedColumns(const float* values, int64_t gates, int64_t hidden, bool short_tail = false);

// Packs W or R for the instruction set.
PackedMatrix PackInputWeights(const CellConfig& config, const KernelTable& kernels, const Matrix& w);
PackedMatrix PackHiddenWeights(const CellConfig& config, const KernelTable& kernels, const Matrix& r,
                               int64_t zero_point);

// Packs everything that does not depend on R.
void PackInputSide(const CellConfig& config, const KernelTable& kernels, const CellParameters& parameters,
                   PackedCell* packed);
// Packs the rest for a cell whose whole R multiplies the hidden codes.
void PackHiddenSide(const CellConfig& config, const KernelTable& kernels, const CellParameters& parameters,
                    PackedCell* packed);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_DRIVER_CELL_RUN_H_
