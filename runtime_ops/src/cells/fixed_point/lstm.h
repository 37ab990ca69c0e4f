#ifndef RNNQC_CELLS_FIXED_POINT_LSTM_H_
#define RNNQC_CELLS_FIXED_POINT_LSTM_H_

#include <memory>

#include "cells/driver/cell_run.h"
#include "cells/driver/layer.h"
#include "cells/lstm/config.h"

namespace rnnqc {

// In binary64 or, for the arithmetic "grid32", in binary32.
std::unique_ptr<Layer> GridLstmLayer(const LstmConfig& config, const KernelTable& kernels,
                                     const CellParameters& parameters);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_FIXED_POINT_LSTM_H_
