#include "cells/fixed_point/gru.h"

#include <algorithm>
#include <utility>

#include "cells/driver/activations.h"
#include "cells/fixed_point/fixed_point_run.h"

namespace rnnqc {
namespace {

struct PackedGridGru : PackedGrid<double> {
  // Without linear_before_reset `r` and `h_multiplier` are those of gates z and r, and these of gate h.
  GridProduct r_hidden;
  AlignedArray<double> hidden_multiplier;
  AlignedArray<double> hidden_bias;  // padded; empty without linear_before_reset

  Division Divide(const CellConfig& config, const KernelTable& kernels, const CellArgs& args, int64_t members) const {
    if (r_hidden.planes.empty()) return PackedGrid<double>::Divide(config, kernels, args, members);
    return {GroupsOfGridRows(w, {&r, &r_hidden}, args), 1};
  }
};

class GridGruRun final : public GridRun<double> {
 public:
  GridGruRun(const GruConfig& config, const KernelTable& kernels, const PackedGridGru& packed, const CellArgs& args,
             int64_t first, int64_t stride)
      : GridRun<double>(config, kernels, packed, args, first, stride),
        weights_(packed),
        points_(config.grid.points),
        halves_(!config.linear_before_reset),
        reset_planes_(points_[GruGrid::kReset].max > 255 ? 2 : 1) {}

 private:
  void VisitScratch(ScratchPieces& pieces) override {
    pieces(reset_codes_, halves_ ? rows_ * reset_planes_ * units_ : 0);
  }

  void InitializeStates() override {
    for (int64_t r = 0; args_.initial_h != nullptr && r < rows_; ++r) InitializeState(r);
    PrepareStep(&gru_step_);
    gru_step_.hidden_bias = weights_.hidden_bias.data();
    gru_step_.reset = Quantizer<double>(points_[GruGrid::kReset]);
    gru_step_.reset_zero_point = static_cast<int32_t>(points_[GruGrid::kReset].zero_point);
    gru_step_.kept = Quantizer<double>(points_[GruGrid::kKept]);
    gru_step_.added = Quantizer<double>(points_[GruGrid::kAdded]);
    gru_step_.state = Quantizer<double>(points_[GruGrid::kState]);
    gru_step_.largest_state = kLargestMagnitude;
  }

  void InitializeState(int64_t r) {
    const float* given = args_.initial_h + sequences_.batch_index(r) * hidden_;
    float* h = RowOfY(r);
    for (int64_t unit = 0; unit < hidden_; ++unit) {
      const float value = given[unit] == given[unit] ? given[unit] : 0.0f;
      h[unit] = std::min(std::max(value, -kLargestMagnitude), kLargestMagnitude);
    }
    const Codes codes = HiddenCodes();
    Encode(h, hidden_, config_.grid.hidden(), codes.high(r), codes.low(r));
  }

  void RunStep() override {
    Multiply(weights_.r, HiddenCodes(), active_, HiddenShare());
    const Codes reset{reset_codes_, hidden_, units_, reset_planes_};
    for (int64_t r = 0; r < active_; ++r) {
      SetRow(r, &gru_step_);
      if (halves_) {
        gru_step_.reset_high = reset.high(r);
        gru_step_.reset_low = reset.low(r);
      }
      elementwise_.gru_gates(gru_step_);
    }
    if (halves_) {
      Multiply(weights_.r_hidden, reset, active_,
               {weights_.hidden_multiplier.data(), nullptr, hidden_product_ + kHiddenGate,
                h_share_ + kHiddenGate * units_, columns_});
    }
    for (int64_t r = 0; r < active_; ++r) {
      SetRow(r, &gru_step_);
      elementwise_.gru_output(gru_step_);
      WriteRow(r);
    }
  }

  const PackedGridGru& weights_;
  const GridPoint* const points_;
  const bool halves_;  // a step in two, with the codes of r * h between
  const int64_t reset_planes_;
  GridGruArgs gru_step_{};
  uint8_t* reset_codes_ = nullptr;
};

}  // namespace

std::unique_ptr<Layer> GridGruLayer(const GruConfig& config, const KernelTable& kernels,
                                    const CellParameters& parameters) {
  const int64_t hidden = config.hidden_size;
  PackedGridGru packed;
  PackGridInputSide(config, kernels, parameters, &packed);
  if (config.linear_before_reset) {
    PackGridHiddenSide(config, kernels, parameters, &packed);
    packed.hidden_bias = PlanarArray<double>(parameters.hidden_bias, 1, hidden);
  } else {
    const GateColumns gates(parameters.r, kUpdateGate, kHiddenGate);
    const GateColumns output(parameters.r, kHiddenGate, 1);
    const GridPoint& reset = config.grid.points[GruGrid::kReset];
    packed.r = PackGridProduct(kernels, gates.matrix(), config.h_zero_point, config.h_bits == 16);
    packed.h_multiplier = PlanarArray<double>(parameters.h_multiplier, kHiddenGate, hidden);
    packed.r_hidden = PackGridProduct(kernels, output.matrix(), reset.zero_point, reset.max > 255);
    packed.hidden_multiplier = PlanarArray<double>(parameters.h_multiplier + kHiddenGate * hidden, 1, hidden);
  }
  return MakeLayer<GridGruRun>(config, kernels, std::move(packed));
}

}  // namespace rnnqc
