#ifndef RNNQC_CELLS_GRU_RNN_RNN_H_
#define RNNQC_CELLS_GRU_RNN_RNN_H_

#include "cells/driver/cell_run.h"
#include "cells/driver/scratch.h"
#include "cells/gru_rnn/config.h"

namespace rnnqc {

PackedCell PackRnn(const RnnConfig& config, const KernelTable& kernels, const CellParameters& parameters);

// Whether the table of a cell that the table kernel runs has a linear form, which is then written to `linear`.
bool FindLinearTables(const RnnConfig& config, const float* gate_table, LinearTables* linear);

void RunRnn(const RnnConfig& config, const KernelTable& kernels, const PackedCell& packed, const CellArgs& args,
            Scratch* scratch, Parallel* parallel);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_GRU_RNN_RNN_H_
