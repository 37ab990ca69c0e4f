#ifndef RNNQC_CELLS_LSTM_LSTM_H_
#define RNNQC_CELLS_LSTM_LSTM_H_

#include <cstdint>
#include <memory>

#include "cells/driver/cell_run.h"
#include "cells/driver/layer.h"
#include "cells/lstm/config.h"
#include "kernels/kernel_table.h"

namespace rnnqc {

struct PackedLstm : PackedCell {
  AlignedArray<float> peephole;  // empty without peepholes
  bool short_tail = false;
  // A pre-activation is at most x_reach * (the input's scale of dynamic rows, or 1) + reach.
  float x_reach;
  float reach;
};

std::unique_ptr<Layer> LstmLayer(const LstmConfig& config, const KernelTable& kernels,
                                 const CellParameters& parameters);

// The tables of a cell that the table kernel runs; none of another cell.
TableExtent TablesOf(const LstmConfig& config, const float* gate_table, const float* cell_table,
                     int64_t cell_table_size);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_LSTM_LSTM_H_
