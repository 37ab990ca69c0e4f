#include "cells/fixed_point/lstm.h"

#include <algorithm>
#include <utility>

#include "cells/fixed_point/fixed_point_run.h"

namespace rnnqc {
namespace {

template <typename Real>
struct PackedGridLstm : PackedGrid<Real> {
  AlignedArray<Real> peephole;  // planar; empty without peepholes
};

template <typename Real>
class GridLstmRun final : public GridRun<Real> {
 public:
  GridLstmRun(const LstmConfig& config, const KernelTable& kernels, const PackedGridLstm<Real>& packed,
              const CellArgs& args, int64_t first, int64_t stride)
      : GridRun<Real>(config, kernels, packed, args, first, stride), lstm_(config), weights_(packed) {}

 private:
  using Base = GridRun<Real>;
  using Base::active_;
  using Base::args_;
  using Base::hidden_;
  using Base::rows_;
  using Base::sequences_;
  using Base::units_;

  void VisitScratch(ScratchPieces& pieces) override { pieces(c_, rows_ * units_); }

  void InitializeStates() override {
    std::fill(c_, c_ + rows_ * units_, Real(0));
    const GridPoint& cell = lstm_.grid.points[LstmGrid::kCell];
    for (int64_t r = 0; args_.initial_c != nullptr && r < rows_; ++r) {
      this->Round(args_.initial_c + sequences_.batch_index(r) * hidden_, hidden_, cell, c_ + r * units_);
    }
    this->PrepareStep(&lstm_step_, lstm_.input_forget ? int64_t{kForgetGate} : -1);
    lstm_step_.peephole = weights_.peephole.data();
    lstm_step_.cell_table = args_.cell_table - cell.low();
    lstm_step_.input_forget = lstm_.input_forget;
    lstm_step_.one = lstm_.one;
    lstm_step_.kept = Quantizer<Real>(lstm_.grid.points[LstmGrid::kKept]);
    lstm_step_.added = Quantizer<Real>(lstm_.grid.points[LstmGrid::kAdded]);
    lstm_step_.cell = Quantizer<Real>(cell);
    lstm_step_.rounded_output = lstm_.grid.rounded_output;
  }

  void RunStep() override {
    this->Multiply(weights_.r, this->HiddenCodes(), active_, this->HiddenShare());
    for (int64_t r = 0; r < active_; ++r) {
      this->SetRow(r, &lstm_step_);
      lstm_step_.c = c_ + r * units_;
      this->elementwise_.lstm_step(lstm_step_);
      this->WriteRow(r);
    }
  }

  void WriteFinalStates() override {
    for (int64_t r = 0; args_.y_c != nullptr && r < rows_; ++r) {
      float* y_c = args_.y_c + sequences_.batch_index(r) * hidden_;
      const bool any = sequences_.length(r) > 0;
      for (int64_t unit = 0; unit < hidden_; ++unit) {
        y_c[unit] = any ? static_cast<float>(c_[r * units_ + unit]) + 0.0f : 0.0f;
      }
    }
  }

  const LstmConfig& lstm_;
  const PackedGridLstm<Real>& weights_;
  GridLstmArgs<Real> lstm_step_{};
  Real* c_ = nullptr;
};

template <typename Real>
std::unique_ptr<Layer> LayerIn(const LstmConfig& config, const KernelTable& kernels, const CellParameters& parameters) {
  PackedGridLstm<Real> packed;
  PackGridInputSide(config, kernels, parameters, &packed);
  PackGridHiddenSide(config, kernels, parameters, &packed);
  if (parameters.peephole != nullptr) {
    packed.peephole = PlanarArray<Real>(parameters.peephole, 3, config.hidden_size);
  }
  return MakeLayer<GridLstmRun<Real>>(config, kernels, std::move(packed));
}

}  // namespace

std::unique_ptr<Layer> GridLstmLayer(const LstmConfig& config, const KernelTable& kernels,
                                     const CellParameters& parameters) {
  return (config.arithmetic == Arithmetic::kGrid ? LayerIn<double> : LayerIn<float>)(config, kernels, parameters);
}

}  // namespace rnnqc
