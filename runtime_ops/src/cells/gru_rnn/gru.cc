#include "cells/gru_rnn/gru.h"

#include <algorithm>
#include <utility>

#include "cells/driver/row_format.h"
#include "cells/gru_rnn/gru_rnn_run.h"

namespace rnnqc {
namespace {

struct PackedGru : PackedCell {
  // Without linear_before_reset `r` and `h_multiplier` are those of gates z and r, and these of gate h.
  PackedMatrix r_hidden;
  AlignedArray<float> hidden_multiplier;
  AlignedArray<float> hidden_bias;  // padded to whole blocks of units; empty without linear_before_reset
  Reciprocal reset_reciprocal;      // of reset_scale

  Division Divide(const CellConfig& config, const KernelTable& kernels, const CellArgs& args, int64_t members) const {
    return rnnqc::Divide(config, kernels, *this, r.bytes() + r_hidden.bytes(), r.start.size() + r_hidden.start.size(),
                         args, members);
  }
};

class GruRun final : public HiddenRun {
 public:
  GruRun(const GruConfig& config, const KernelTable& kernels, const PackedGru& packed, const CellArgs& args,
         int64_t first, int64_t stride)
      : HiddenRun(config, kernels, packed, args, first, stride),
        gru_(config),
        weights_(packed),
        halves_(!config.linear_before_reset) {}

 private:
  // Phases of a step: the product of h with what follows it, and in halves then that of r * h.
  static constexpr int kFirst = 0;
  static constexpr int kSecond = 1;

  void VisitScratch(ScratchPieces& pieces) override {
    HiddenRun::VisitScratch(pieces);
    const int64_t units = rows_ * units_padded_;
    pieces(state_, units);
    pieces(z_, halves_ ? units : 0);
    pieces(reset_, halves_ && (!kernels_quantize() || MayLose()) ? units : 0);
    pieces(reset_codes_, halves_ ? units * h_planes_ : 0);
    pieces(reset_zero_point_, halves_ ? rows_ * h_planes_ : 0);
    pieces(reset_scale_, halves_ ? rows_ : 0);
    pieces(output_acc_, halves_ ? rows_ * h_planes_ * SumStride(weights_.r_hidden.start.size()) : 0);
  }

  void InitializeStates() override {
    if (args_.initial_h == nullptr) {
      std::fill(state_, state_ + rows_ * units_padded_, 0.0f);
    } else {
      for (int64_t r = 0; r < rows_; ++r) InitializeRow(r);
    }
    PrepareSteps();
    step_args_.hidden_bias = weights_.hidden_bias.data();
    step_args_.state = state_;
    step_args_.z = z_;
    if (!halves_) return;
    FillZeroPoints(gru_.reset_zero_point, reset_zero_point_);
    std::fill(reset_codes_, reset_codes_ + rows_ * h_planes_ * units_padded_, uint8_t{0});
  }

  void InitializeRow(int64_t r) {
    const float* values = InitialRow(r);
    float* state = state_ + r * units_padded_;
    const float largest = kernels_.max_abs(values, hidden_);
    if (largest <= kLargestMagnitude) {
      // The codes do not wait for the copy.
      QuantizeInitialRow(r, values, largest);
      CopyHidden(values, hidden_, state);
    } else {
      LimitHidden(values, hidden_, state);
      QuantizeInitialRow(r, state, kLargestMagnitude);
    }
    std::fill(state + hidden_, state + units_padded_, 0.0f);
    loses_ = loses_ || (MayLose() && std::min(largest, kLargestMagnitude) > config_.h_bound);
  }

  void RunStep() override {
    // Steps keep a state within the bound.
    loses_ = loses_ && AnyIsBeyond();
    if (loses_) QuantizeLosses(state_, config_.h_scale, config_.h_zero_point);
    RunPhase(kFirst);
    if (halves_) {
      QuantizeDynamicRows(ResetCodes());
      if (loses_) QuantizeLosses(reset_, gru_.reset_scale, gru_.reset_zero_point);
      RunPhase(kSecond);
    }
    if (!IsLastStep()) QuantizeDynamicRows(HiddenCodes());
  }

  void DoPhase(int phase, const Blocks& units) override {
    if (phase == kFirst && halves_) {
      return MultiplyAndStep(kernels_.gru_reset, FirstProduct(), ResetCodes(), units);
    }
    if (halves_) {
      MultiplyAndStep(kernels_.gru_output, SecondProduct(), HiddenCodes(), units);
    } else {
      MultiplyAndStep(kernels_.gru_cell, HiddenProduct(), HiddenCodes(), units);
    }
    CopyCodes(units.begin * kBlockUnits, std::min(units.end * kBlockUnits, hidden_));
  }

  bool AnyIsBeyond() const {
    for (int64_t r = 0; r < active_; ++r) {
      if (IsBeyond(state_ + r * units_padded_)) return true;
    }
    return false;
  }

  void QuantizeLosses(const float* values, float unit_scale, int64_t zero_point) const {
    for (int64_t r = 0; r < active_; ++r) QuantizeLoss(r, values + r * units_padded_, unit_scale, zero_point);
  }

  // The target for r * h.
  Target ResetCodes() const {
    return {gru_.reset_scale, weights_.reset_reciprocal, gru_.reset_zero_point, reset_codes_, reset_scale_, reset_};
  }

  // Without linear_before_reset: of h, and of r * h.
  Product FirstProduct() const {
    Product product = HiddenProduct();
    product.gates = kHiddenGate;
    return product;
  }

  Product SecondProduct() const {
    const float* scales = is_dynamic() ? reset_scale_ : nullptr;
    return {weights_.r_hidden, 1, weights_.hidden_multiplier.data(), reset_codes_, reset_zero_point_, scales,
            output_acc_};
  }

  const GruConfig& gru_;
  const PackedGru& weights_;
  const bool halves_;  // a step in two, with the codes of r * h between

  float* state_ = nullptr;
  float* z_ = nullptr;
  uint8_t* reset_codes_ = nullptr;  // of r * h
  int32_t* reset_zero_point_ = nullptr;
  float* reset_scale_ = nullptr;
  int32_t* output_acc_ = nullptr;
};

}  // namespace

std::unique_ptr<Layer> GruLayer(const GruConfig& config, const KernelTable& kernels, const CellParameters& parameters) {
  const int64_t hidden = config.hidden_size;
  PackedGru packed;
  PackInputSide(config, kernels, parameters, &packed);
  if (config.linear_before_reset) {
    PackHiddenSide(config, kernels, parameters, &packed);
    packed.hidden_bias = AlignedArray<float>(BlockCount(hidden) * kBlockUnits);
    std::fill(std::copy(parameters.hidden_bias, parameters.hidden_bias + hidden, packed.hidden_bias.data()),
              packed.hidden_bias.data() + packed.hidden_bias.size(), 0.0f);
  } else {
    const GateColumns gates(parameters.r, kUpdateGate, kHiddenGate);
    const GateColumns output(parameters.r, kHiddenGate, 1);
    packed.r = PackHiddenWeights(config, kernels, gates.matrix(), config.h_zero_point);
    packed.h_multiplier = PackedColumns(parameters.h_multiplier, kHiddenGate, hidden);
    packed.r_hidden = PackHiddenWeights(config, kernels, output.matrix(), config.reset_zero_point);
    packed.hidden_multiplier = PackedColumns(parameters.h_multiplier + kHiddenGate * hidden, 1, hidden);
    packed.reset_reciprocal = FindReciprocal(config.reset_scale);
  }
  return MakeLayer<GruRun>(config, kernels, std::move(packed));
}

}  // namespace rnnqc
