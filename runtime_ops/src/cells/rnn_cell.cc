#include "cells/rnn_cell.h"

#include <algorithm>

#include "cells/division.h"
#include "cells/hidden_run.h"

namespace rnnqc {
namespace {

class RnnRun final : public HiddenRun {
 public:
  RnnRun(const RnnConfig& config, const KernelTable& kernels, const PackedCell& packed, const CellArgs& args,
         int64_t first, int64_t stride)
      : HiddenRun(config, kernels, packed, args, first, stride) {}

 private:
  void VisitScratch(ScratchPieces&) override {}

  void InitializeStates() override {
    for (int64_t r = 0; r < rows_; ++r) QuantizeInitialHidden(r);
    PrepareSteps();
  }

  void RunStep() override {
    RunPhase(0);
    if (!table_kernels_) GenericCells();
  }

  void DoPhase(int, const Blocks& units) override {
    const Product product = HiddenProduct();
    Multiply(product, units);
    if (h_planes_ == 2) JoinPlanes(product, units, p_step_, columns_, p_step_);
    if (!table_kernels_) return;
    kernels_.rnn_cell(StepOf(product, units));
    CopyCodes(units.begin * kBlockUnits, std::min(units.end * kBlockUnits, hidden_));
  }

  void GenericCells() {
    const Product product = HiddenProduct();
    for (int64_t r = 0; r < active_; ++r) {
      const HiddenProducts products = ProductsOf(product, r);
      const float* p = p_step_ + r * columns_;
      for (int64_t unit = 0; unit < hidden_; ++unit) {
        // With 16-bit codes the products are in p already.
        const float g = h_planes_ == 2 ? p[unit] : products[unit] + p[unit];
        y_rows_[r][unit] = ActivateGate(config_.gates[0], args_.gate_table, g);
      }
      QuantizeHidden(r, y_rows_[r], CodesAfter(step_));
    }
    CopyCodes(0, hidden_);
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
  const Division division = Divide(config, packed, packed.r.bytes(), packed.r.start.size(), args, scratch->members());
  RunDivided(
      division, [&](int64_t first, int64_t stride) { return RnnRun(config, kernels, packed, args, first, stride); },
      scratch, parallel);
}

}  // namespace rnnqc
