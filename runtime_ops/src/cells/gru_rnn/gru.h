#ifndef RNNQC_CELLS_GRU_RNN_GRU_H_
#define RNNQC_CELLS_GRU_RNN_GRU_H_

#include "cells/driver/cell_run.h"
#include "cells/driver/scratch.h"
#include "cells/gru_rnn/config.h"

namespace rnnqc {

struct GruParameters : CellParameters {
  const float* hidden_bias;  // [H] with linear_before_reset, else null
};

struct PackedGru : PackedCell {
  // Without linear_before_reset `r` and `h_multiplier` are those of gates z and r, and these of gate h.
  PackedMatrix r_hidden;
  AlignedArray<float> hidden_multiplier;
  AlignedArray<float> hidden_bias;  // padded to whole blocks of units; empty without linear_before_reset
};

PackedGru PackGru(const GruConfig& config, const KernelTable& kernels, const GruParameters& parameters);

// Whether the tables of a cell that the table kernels run have a linear form, which is then written to `linear`.
bool FindLinearTables(const GruConfig& config, const float* gate_table, LinearTables* linear);

void RunGru(const GruConfig& config, const KernelTable& kernels, const PackedGru& packed, const CellArgs& args,
            Scratch* scratch, Parallel* parallel);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_GRU_RNN_GRU_H_
