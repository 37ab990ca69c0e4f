#ifndef RNNQC_CELLS_FIXED_POINT_RNN_H_
#define RNNQC_CELLS_FIXED_POINT_RNN_H_

#include <memory>

#include "cells/driver/cell_run.h"
#include "cells/driver/layer.h"
#include "cells/gru_rnn/config.h"

namespace rnnqc {

std::unique_ptr<Layer> GridRnnLayer(const RnnConfig& config, const KernelTable& kernels,
                                    const CellParameters& parameters);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_FIXED_POINT_RNN_H_
