#ifndef RNNQC_CELLS_LSTM_GENERIC_STEP_H_
#define RNNQC_CELLS_LSTM_GENERIC_STEP_H_

#include <cstdint>

#include "cells/driver/activations.h"
#include "cells/lstm/config.h"

namespace rnnqc {

// Products of one row's hidden codes in pre-activation units, in block order.
struct HiddenProducts {
  const int32_t* acc;
  const float* row_scale;  // scale of the row's codes for h_mode dynamic_row, else null
  const float* multiplier;
};

// One step of one row for every configuration the operator allows, up to the hidden state; its codes are left to the
// caller. Buffers are in block order or rows of 16 * blocks units, as for the kernels.
struct GenericStepArgs {
  int64_t units;
  HiddenProducts products;
  const float* p;
  const float* peephole;  // block order (gates i, o, f), or null
  const float* gate_table;
  const float* cell_table;
  int64_t cell_table_size;
  float* c;
  float* y;
};

void GenericStep(const LstmConfig& config, const GenericStepArgs& args);

// The cell state in its own units, from a real value: step 5 of the operator's preparation.
void InitialCells(const LstmConfig& config, const float* values, int64_t units, float* cells);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_LSTM_GENERIC_STEP_H_
