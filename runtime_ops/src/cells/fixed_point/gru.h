#ifndef RNNQC_CELLS_FIXED_POINT_GRU_H_
#define RNNQC_CELLS_FIXED_POINT_GRU_H_

#include <memory>

#include "cells/driver/cell_run.h"
#include "cells/driver/layer.h"
#include "cells/gru_rnn/config.h"

namespace rnnqc {

std::unique_ptr<Layer> GridGruLayer(const GruConfig& config, const KernelTable& kernels,
                                    const CellParameters& parameters);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_FIXED_POINT_GRU_H_
