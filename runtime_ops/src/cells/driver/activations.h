#ifndef RNNQC_CELLS_DRIVER_ACTIVATIONS_H_
#define RNNQC_CELLS_DRIVER_ACTIVATIONS_H_

#include "cells/driver/cell_config.h"
#include "cells/driver/row_format.h"

namespace rnnqc {

// One value for each unit of a block. All loops over them have this length, so that compilers vectorise them.
using BlockFloats = float[kBlockUnits];

// The functions below replace values.

void Relu(BlockFloats& v);

// The kinds that need no table.
void Evaluate(Kind kind, float alpha, float beta, BlockFloats& v);

// Replaces a gate's pre-activations by its values; `table` is the whole gate_table.
void ActivateGate(const GateConfig& gate, const float* table, BlockFloats& g);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_DRIVER_ACTIVATIONS_H_
