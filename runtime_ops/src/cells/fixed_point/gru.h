#ifndef RNNQC_CELLS_FIXED_POINT_GRU_H_
#define RNNQC_CELLS_FIXED_POINT_GRU_H_

#include "cells/driver/scratch.h"
#include "cells/fixed_point/fixed_point_run.h"
#include "cells/gru_rnn/config.h"

namespace rnnqc {

struct GridGruParameters : GridParameters {
  const float* hidden_bias;  // [H] with linear_before_reset, else null
};

struct PackedGridGru : PackedGrid<double> {
  // Without linear_before_reset `r` and `h_multiplier` are those of gates z and r, and these of gate h.
  GridProduct r_hidden;
  AlignedArray<double> hidden_multiplier;
  AlignedArray<double> hidden_bias;  // padded; empty without linear_before_reset
};

PackedGridGru PackGridGru(const GruConfig& config, const KernelTable& kernels, const GridGruParameters& parameters);

void RunGridGru(const GruConfig& config, const KernelTable& kernels, const PackedGridGru& packed, const CellArgs& args,
                Scratch* scratch, Parallel* parallel);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_FIXED_POINT_GRU_H_
