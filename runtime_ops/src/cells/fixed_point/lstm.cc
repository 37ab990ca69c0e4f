#include "cells/fixed_point/lstm.h"

#include <algorithm>

#include "cells/driver/groups.h"

namespace rnnqc {
namespace {

template <typename Real>
class GridLstmRun final : public GridRun<Real> {
 public:
  GridLstmRun(const LstmConfig& config, const KernelTable& kernels, const PackedGridLstm<Real>& packed,
              const LstmArgs& args, int64_t first, int64_t stride)
      : GridRun<Real>(config, kernels, packed, args, first, stride), lstm_(config), weights_(packed), call_(args) {}

 private:
  using Base = GridRun<Real>;
  using Base::hidden_;
  using Base::rows_;
  using Base::sequences_;
  using Base::units_;

  void VisitScratch(ScratchPieces& pieces) override { pieces(c_, rows_ * units_); }

  void InitializeStates() override {
    std::fill(c_, c_ + rows_ * units_, Real(0));
    const GridPoint& cell = lstm_.grid.points[LstmGrid::kCell];
    for (int64_t r = 0; call_.initial_c != nullptr && r < rows_; ++r) {
      this->Round(call_.initial_c + sequences_.batch_index(r) * hidden_, hidden_, cell, c_ + r * units_);
    }
    this->PrepareStep(&step_, lstm_.input_forget ? int64_t{kForgetGate} : -1);
    step_.peephole = weights_.peephole.data();
    step_.cell_table = call_.cell_table - cell.low();
    step_.input_forget = lstm_.input_forget;
    step_.one = lstm_.one;
    step_.kept = Quantizer<Real>(lstm_.grid.points[LstmGrid::kKept]);
    step_.added = Quantizer<Real>(lstm_.grid.points[LstmGrid::kAdded]);
    step_.cell = Quantizer<Real>(cell);
    step_.rounded_output = lstm_.grid.rounded_output;
  }

  void RunStep(int64_t step, int64_t active, const Real* p) override {
    this->Multiply(weights_.r, this->HiddenCodes(), active, this->HiddenShare());
    for (int64_t r = 0; r < active; ++r) {
      this->SetRow(r, p, &step_);
      step_.c = c_ + r * units_;
      this->elementwise_.lstm_step(step_);
      this->WriteRow(step, r);
    }
  }

  void WriteFinalStates() override {
    for (int64_t r = 0; call_.y_c != nullptr && r < rows_; ++r) {
      float* y_c = call_.y_c + sequences_.batch_index(r) * hidden_;
      const bool any = sequences_.length(r) > 0;
      for (int64_t unit = 0; unit < hidden_; ++unit) {
        y_c[unit] = any ? static_cast<float>(c_[r * units_ + unit]) + 0.0f : 0.0f;
      }
    }
  }

  const LstmConfig& lstm_;
  const PackedGridLstm<Real>& weights_;
  const LstmArgs& call_;
  GridLstmArgs<Real> step_{};
  Real* c_ = nullptr;
};

}  // namespace

template <typename Real>
PackedGridLstm<Real> PackGridLstm(const LstmConfig& config, const KernelTable& kernels,
                                  const GridLstmParameters& parameters) {
  PackedGridLstm<Real> packed;
  PackGridInputSide(config, kernels, parameters, &packed);
  PackGridHiddenSide(config, kernels, parameters, &packed);
  if (parameters.peephole != nullptr) {
    packed.peephole = PlanarArray<Real>(parameters.peephole, 3, config.hidden_size);
  }
  return packed;
}

template <typename Real>
void RunGridLstm(const LstmConfig& config, const KernelTable& kernels, const PackedGridLstm<Real>& packed,
                 const LstmArgs& args, Scratch* scratch, Parallel* parallel) {
  RunGroups(
      GroupsOfGridRows(packed.w, {&packed.r}, args),
      [&](int64_t first, int64_t stride) { return GridLstmRun<Real>(config, kernels, packed, args, first, stride); },
      scratch, parallel);
}

template PackedGridLstm<double> PackGridLstm<double>(const LstmConfig&, const KernelTable&, const GridLstmParameters&);
template void RunGridLstm<double>(const LstmConfig&, const KernelTable&, const PackedGridLstm<double>&, const LstmArgs&,
                                  Scratch*, Parallel*);
template PackedGridLstm<float> PackGridLstm<float>(const LstmConfig&, const KernelTable&, const GridLstmParameters&);
template void RunGridLstm<float>(const LstmConfig&, const KernelTable&, const PackedGridLstm<float>&, const LstmArgs&,
                                 Scratch*, Parallel*);

}  // namespace rnnqc
