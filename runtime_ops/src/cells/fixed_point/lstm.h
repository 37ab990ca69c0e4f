#ifndef RNNQC_CELLS_FIXED_POINT_LSTM_H_
#define RNNQC_CELLS_FIXED_POINT_LSTM_H_

#include "cells/driver/scratch.h"
#include "cells/fixed_point/fixed_point_run.h"
#include "cells/lstm/config.h"
#include "cells/lstm/lstm.h"

namespace rnnqc {

struct GridLstmParameters : GridParameters {
  const float* peephole;  // [3H] or null
};

template <typename Real>
struct PackedGridLstm : PackedGrid<Real> {
  AlignedArray<Real> peephole;  // planar; empty without peepholes
};

template <typename Real>
PackedGridLstm<Real> PackGridLstm(const LstmConfig& config, const KernelTable& kernels,
                                  const GridLstmParameters& parameters);

template <typename Real>
void RunGridLstm(const LstmConfig& config, const KernelTable& kernels, const PackedGridLstm<Real>& packed,
                 const LstmArgs& args, Scratch* scratch, Parallel* parallel);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_FIXED_POINT_LSTM_H_
