#include "cells/fixed_point/rnn.h"

#include "cells/driver/groups.h"

namespace rnnqc {
namespace {

class GridRnnRun final : public GridRun<double> {
 public:
  GridRnnRun(const RnnConfig& config, const KernelTable& kernels, const PackedGrid<double>& packed,
             const CellArgs& args, int64_t first, int64_t stride)
      : GridRun<double>(config, kernels, packed, args, first, stride) {}

 private:
  void VisitScratch(ScratchPieces&) override {}

  void InitializeStates() override { PrepareStep(&step_); }

  void RunStep(int64_t step, int64_t active, const double* p) override {
    Multiply(packed_.r, HiddenCodes(), active, HiddenShare());
    for (int64_t r = 0; r < active; ++r) {
      SetRow(r, p, &step_);
      elementwise_.rnn_step(step_);
      WriteRow(step, r);
    }
  }

  GridStepArgs<double> step_{};
};

}  // namespace

PackedGrid<double> PackGridRnn(const RnnConfig& config, const KernelTable& kernels, const GridParameters& parameters) {
  PackedGrid<double> packed;
  PackGridInputSide(config, kernels, parameters, &packed);
  PackGridHiddenSide(config, kernels, parameters, &packed);
  return packed;
}

void RunGridRnn(const RnnConfig& config, const KernelTable& kernels, const PackedGrid<double>& packed,
                const CellArgs& args, Scratch* scratch, Parallel* parallel) {
  RunGroups(
      GroupsOfGridRows(packed.w, {&packed.r}, args),
      [&](int64_t first, int64_t stride) { return GridRnnRun(config, kernels, packed, args, first, stride); }, scratch,
      parallel);
}

}  // namespace rnnqc
