#include "cells/gru_rnn/rnn.h"

#include <algorithm>
#include <utility>

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
    if (!IsLastStep()) QuantizeDynamicRows(HiddenCodes());
  }

  void DoPhase(int, const Blocks& units) override {
    MultiplyAndStep(kernels_.rnn_cell, HiddenProduct(), HiddenCodes(), units);
    CopyCodes(units.begin * kBlockUnits, std::min(units.end * kBlockUnits, hidden_));
  }
};

}  // namespace

std::unique_ptr<Layer> RnnLayer(const RnnConfig& config, const KernelTable& kernels, const CellParameters& parameters) {
  PackedCell packed;
  PackInputSide(config, kernels, parameters, &packed);
  PackHiddenSide(config, kernels, parameters, &packed);
  return MakeLayer<RnnRun>(config, kernels, std::move(packed));
}

}  // namespace rnnqc
