#ifndef RNNQC_CELLS_DRIVER_CELL_RUN_H_
#define RNNQC_CELLS_DRIVER_CELL_RUN_H_

#include <cstddef>
#include <cstdint>

#include "cells/driver/cell_config.h"
#include "kernels/kernel_table.h"

namespace rnnqc {

// Weights and per-column vectors as the operators give them: W [input_size, gates * H], R [H, gates * H], vectors
// [gates * H].
struct CellParameters {
  Matrix w;
  Matrix r;
  const float* x_multiplier;
  const float* h_multiplier;
  const float* bias;
};

struct PackedCell {
  PackedMatrix w;
  PackedMatrix r;
  AlignedArray<float> x_multiplier;
  AlignedArray<float> h_multiplier;  // of the columns of `r`
  AlignedArray<float> bias;
};

// Runs task(user, 0) .. task(user, count - 1), perhaps on several threads, and returns when all are done.
class Parallel {
 public:
  virtual ~Parallel() = default;
  virtual void For(int64_t count, void (*task)(void* user, size_t index), void* user) = 0;
};

// One call. Null pointers stand for absent inputs and outputs. Tables hold at least the required sizes.
struct CellArgs {
  int64_t time;
  int64_t batch;
  const float* x_float;    // [time, batch, input_size]: either this
  const uint8_t* x_codes;  // or this, for x_mode codes
  const float* gate_table;
  const LinearTables* linear;    // of the tables, or null
  const int32_t* sequence_lens;  // [batch], each 0 .. time
  const float* initial_h;        // [batch, hidden]
  float* y;                      // [time, batch, hidden]
  float* y_h;                    // [batch, hidden]
  uint8_t* y_codes;              // [time, batch, hidden]; static hidden codes only
  bool descending;               // a hint: which way the first step reads weights
};

// In block order.
AlignedArray<float> PackedColumns(const float* values, int64_t gates, int64_t hidden);

// W or R in the form for the instruction set.
PackedMatrix PackInputWeights(const CellConfig& config, const KernelTable& kernels, const Matrix& w);
PackedMatrix PackHiddenWeights(const CellConfig& config, const KernelTable& kernels, const Matrix& r,
                               int64_t zero_point);

// Everything that does not depend on R.
void PackInputSide(const CellConfig& config, const KernelTable& kernels, const CellParameters& parameters,
                   PackedCell* packed);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_DRIVER_CELL_RUN_H_
