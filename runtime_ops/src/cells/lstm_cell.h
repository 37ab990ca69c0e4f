#ifndef RNNQC_CELLS_LSTM_CELL_H_
#define RNNQC_CELLS_LSTM_CELL_H_

#include <cstdint>

#include "cells/lstm_config.h"
#include "cells/scratch.h"
#include "kernels/kernel_table.h"

namespace rnnqc {

// Weights and per-column vectors as the operator gives them: W [input_size, 4H], R [H, 4H], vectors [4H],
// peephole [3H] or null.
struct LstmParameters {
  Matrix w;
  Matrix r;
  const float* x_multiplier;
  const float* h_multiplier;
  const float* bias;
  const float* peephole;
};

struct PackedLstm {
  PackedMatrix w;
  PackedMatrix r;
  AlignedArray<float> x_multiplier;
  AlignedArray<float> h_multiplier;
  AlignedArray<float> bias;
  AlignedArray<float> last_bias;  // with kGrid32, where `bias` is 0: added to the sum of both products
  AlignedArray<float> peephole;   // empty without peepholes
};

PackedLstm PackLstm(const LstmConfig& config, const KernelTable& kernels, const LstmParameters& parameters);

// Runs task(user, 0) .. task(user, count - 1), perhaps on several threads, and returns when all are done.
class Parallel {
 public:
  virtual ~Parallel() = default;
  virtual void For(int64_t count, void (*task)(void* user, size_t index), void* user) = 0;
};

// One call. Null pointers stand for absent inputs and outputs. Tables hold at least the required sizes.
struct LstmArgs {
  int64_t time;
  int64_t batch;
  const float* x_float;    // [time, batch, input_size]: either this
  const uint8_t* x_codes;  // or this, for x_mode codes
  const float* gate_table;
  const float* cell_table;
  int64_t cell_table_size;
  const LinearTables* linear;    // of these tables, or null
  const GridBytes* bytes;        // instead of tables, for kGrid32; else null
  const int32_t* sequence_lens;  // [batch], each 0 .. time
  const float* initial_h;        // [batch, hidden]
  const float* initial_c;
  float* y;    // [time, batch, hidden]
  float* y_h;  // [batch, hidden]
  float* y_c;
  uint8_t* y_codes;  // [time, batch, hidden]; static hidden codes only
};

// Whether the tables of a cell that the table kernel runs have a linear form, which is then written to `linear`.
bool FindLinearTables(const LstmConfig& config, const float* gate_table, const float* cell_table,
                      int64_t cell_table_size, LinearTables* linear);

// Runs kTables, or kGrid32 in the form `args.bytes` with the configuration for it.
void RunLstm(const LstmConfig& config, const KernelTable& kernels, const PackedLstm& packed, const LstmArgs& args,
             Scratch* scratch, Parallel* parallel);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_LSTM_CELL_H_
