#ifndef RNNQC_CELLS_HIDDEN_RUN_H_
#define RNNQC_CELLS_HIDDEN_RUN_H_

#include "cells/activations.h"
#include "cells/sequence_run.h"

namespace rnnqc {

// What the cells share that have no state but the hidden one.
class HiddenRun : public SequenceRun {
 protected:
  HiddenRun(const CellConfig& config, const KernelTable& kernels, const PackedCell& packed, const CellArgs& args,
            int64_t first, int64_t stride);
  ~HiddenRun() = default;

  // To be called before the first step: what the steps have in common.
  void PrepareSteps();
  // The arguments of a step but for states and the bias.
  HiddenCellArgs StepOf(const Product& product, const Blocks& units) const;
  // Products of row r of 8-bit codes.
  HiddenProducts ProductsOf(const Product& product, int64_t r) const;

  HiddenCellArgs step_args_{};
  const bool table_kernels_;  // whether those with HiddenCellArgs run the configuration
};

// Whether the gates' tables of such a configuration have a linear form, which is then written to `linear`.
bool FindGateTables(const CellConfig& config, const float* gate_table, LinearTables* linear);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_HIDDEN_RUN_H_
