#ifndef RNNQC_CELLS_FIXED_POINT_RNN_H_
#define RNNQC_CELLS_FIXED_POINT_RNN_H_

#include "cells/driver/scratch.h"
#include "cells/fixed_point/fixed_point_run.h"
#include "cells/gru_rnn/config.h"

namespace rnnqc {

PackedGrid<double> PackGridRnn(const RnnConfig& config, const KernelTable& kernels, const GridParameters& parameters);

void RunGridRnn(const RnnConfig& config, const KernelTable& kernels, const PackedGrid<double>& packed,
                const CellArgs& args, Scratch* scratch, Parallel* parallel);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_FIXED_POINT_RNN_H_
