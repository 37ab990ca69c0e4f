#include "cells/gru_rnn/rnn.h"

#include <algorithm>

#include "cells/driver/division.h"
#include "cells/gru_rnn/gru_rnn_run.h"

namespace rnnqc {
namespace {

class RnnRun final : public HiddenRun {
 public:
  RnnRun(const RnnConfig& config, const KernelTable& kernels, const PackedCell& packed, const CellArgs& args,
         int64_t first, int64_t stride)
      : HiddenRun(config, kernels, packed, args, first, stride) {}

 private:
  void InitializeStates() override {
    QuantizeInitialHidden();
    PrepareSteps();
  }

  void RunStep() override {
    RunPhase(0);
    QuantizeDynamicRows(HiddenCodes());
  }

  void DoPhase(int, const Blocks& units) override {
    MultiplyAndStep(kernels_.rnn_cell, HiddenProduct(), HiddenCodes(), units);
    CopyCodes(units.begin * kBlockUnits, std::min(units.end * kBlockUnits, hidden_));
  }
};

}  // namespace

PackedCell PackRnn(const RnnConfig& config, const KernelTable& kernels, const CellParameters& parameters) {
  PackedCell packed;
  PackInputSide(config, kernels, parameters, &packed);
  packed.r = PackHiddenWeights(config, kernels, parameters.r, config.h_zero_point);
  packed.h_multiplier = PackedColumns(parameters.h_multiplier, config.gate_count, config.hidden_size);
  return packed;
}

bool FindLinearTables(const RnnConfig& config, const float* gate_table, LinearTables* linear) {
  return FindGateTables(config, gate_table, linear);
}

void RunRnn(const RnnConfig& config, const KernelTable& kernels, const PackedCell& packed, const CellArgs& args,
            Scratch* scratch, Parallel* parallel) {
  const Division division =
      Divide(config, kernels, packed, packed.r.bytes(), packed.r.start.size(), args, scratch->members());
  RunDivided(
      division, [&](int64_t first, int64_t stride) { return RnnRun(config, kernels, packed, args, first, stride); },
      scratch, parallel);
}

}  // namespace rnnqc
