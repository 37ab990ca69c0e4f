#include "cells/fixed_point/rnn.h"

#include <utility>

#include "cells/fixed_point/fixed_point_run.h"

namespace rnnqc {
namespace {

class GridRnnRun final : public GridRun<double> {
 public:
  GridRnnRun(const RnnConfig& config, const KernelTable& kernels, const PackedGrid<double>& packed,
             const CellArgs& args, int64_t first, int64_t stride)
      : GridRun<double>(config, kernels, packed, args, first, stride) {}

 private:
  void VisitScratch(ScratchPieces&) override {}

  void InitializeStates() override { PrepareStep(&rnn_step_); }

  void RunStep() override {
    Multiply(packed_.r, HiddenCodes(), active_, HiddenShare());
    for (int64_t r = 0; r < active_; ++r) {
      SetRow(r, &rnn_step_);
      elementwise_.rnn_step(rnn_step_);
      WriteRow(r);
    }
  }

  GridStepArgs<double> rnn_step_{};
};

}  // namespace

std::unique_ptr<Layer> GridRnnLayer(const RnnConfig& config, const KernelTable& kernels,
                                    const CellParameters& parameters) {
  PackedGrid<double> packed;
  PackGridInputSide(config, kernels, parameters, &packed);
  PackGridHiddenSide(config, kernels, parameters, &packed);
  return MakeLayer<GridRnnRun>(config, kernels, std::move(packed));
}

}  // namespace rnnqc
