#ifndef RNNQC_CELLS_LSTM_LSTM_H_
#define RNNQC_CELLS_LSTM_LSTM_H_

#include <cstdint>

#include "cells/driver/cell_run.h"
#include "cells/driver/scratch.h"
#include "cells/lstm/config.h"
#include "kernels/kernel_table.h"

namespace rnnqc {

struct LstmParameters : CellParameters {
  const float* peephole;  // [3H] or null
};

struct PackedLstm : PackedCell {
  AlignedArray<float> peephole;  // empty without peepholes
  Reciprocal h_reciprocal;       // of h_scale
  // A pre-activation is at most x_reach * (the input's scale of dynamic rows, or 1) + reach.
  float x_reach;
  float reach;
};

PackedLstm PackLstm(const LstmConfig& config, const KernelTable& kernels, const LstmParameters& parameters);

struct LstmArgs : CellArgs {
  const float* cell_table;
  int64_t cell_table_size;
  const float* initial_c;  // [batch, hidden]
  float* y_c;
};

// Whether the tables of a cell that the table kernel runs have a linear form, which is then written to `linear`.
bool FindLinearTables(const LstmConfig& config, const float* gate_table, const float* cell_table,
                      int64_t cell_table_size, LinearTables* linear);

void RunLstm(const LstmConfig& config, const KernelTable& kernels, const PackedLstm& packed, const LstmArgs& args,
             Scratch* scratch, Parallel* parallel);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_LSTM_LSTM_H_
