#include "cells/gru_cell.h"

#include <algorithm>
#include <vector>

#include "cells/division.h"
#include "cells/hidden_run.h"
#include "kernels/rounding.h"

namespace rnnqc {
namespace {

// Columns of a matrix [k, gates * units] that belong to some of its gates, and the memory of such a matrix.
struct SomeGates {
  std::vector<int8_t> weights;
  std::vector<uint8_t> multipliers;
  Matrix matrix;

  SomeGates(const Matrix& all, int64_t first, int64_t count) : matrix(all) {
    weights = Columns(all.weights, all.k, all, first, count);
    matrix.weights = weights.data();
    matrix.gates = count;
    if (all.multipliers == nullptr) return;
    multipliers = Columns(all.multipliers, GroupCount(all.k, all.group_size), all, first, count);
    matrix.multipliers = multipliers.data();
  }

 private:
  template <typename T>
  static std::vector<T> Columns(const T* from, int64_t rows, const Matrix& all, int64_t first, int64_t count) {
    std::vector<T> some;
    some.reserve(static_cast<size_t>(rows * count * all.units));
    for (int64_t row = 0; row < rows; ++row) {
      const T* begin = from + row * all.columns() + first * all.units;
      some.insert(some.end(), begin, begin + count * all.units);
    }
    return some;
  }
};

class GruRun final : public HiddenRun {
 public:
  GruRun(const GruConfig& config, const KernelTable& kernels, const PackedGru& packed, const CellArgs& args,
         int64_t first, int64_t stride)
      : HiddenRun(config, kernels, packed, args, first, stride),
        gru_(config),
        weights_(packed),
        halves_(!config.linear_before_reset),
        output_columns_(weights_.r_hidden.start.size()) {}

 private:
  // Phases of a step: the product of h with what follows it, and in halves then that of r * h.
  static constexpr int kFirst = 0;
  static constexpr int kSecond = 1;

  void VisitScratch(ScratchPieces& pieces) override {
    const int64_t units = rows_ * units_padded_;
    pieces(state_, units);
    pieces(z_, halves_ ? units : 0);
    pieces(v_, halves_ && !table_kernels_ ? rows_ * hidden_ : 0);
    pieces(v_codes_, halves_ ? units * h_planes_ : 0);
    pieces(v_zero_point_, halves_ ? rows_ * h_planes_ : 0);
    pieces(v_scale_, halves_ ? rows_ : 0);
    pieces(v_acc_, halves_ ? rows_ * h_planes_ * output_columns_ : 0);
    pieces(joined_, h_planes_ == 1 ? 0 : rows_ * columns_);
    pieces(no_bias_, h_planes_ == 1 ? 0 : columns_);
  }

  void InitializeStates() override {
    std::fill(state_, state_ + rows_ * units_padded_, 0.0f);
    for (int64_t r = 0; r < (args_.initial_h == nullptr ? 0 : rows_); ++r) {
      LimitHidden(args_.initial_h + sequences_.batch_index(r) * hidden_, hidden_, State(r));
      QuantizeHidden(r, State(r), CodesBefore(0));
    }
    PrepareSteps();
    step_args_.hidden_bias = weights_.hidden_bias.data();
    step_args_.state = state_;
    step_args_.z = z_;
    // Adding -0 changes nothing.
    if (h_planes_ > 1) std::fill(no_bias_, no_bias_ + columns_, -0.0f);
    if (!halves_) return;
    FillZeroPoints(gru_.reset_zero_point, v_zero_point_);
    std::fill(v_codes_, v_codes_ + rows_ * h_planes_ * units_padded_, uint8_t{0});
  }

  void RunStep() override {
    RunPhase(kFirst);
    if (!halves_) {
      if (!table_kernels_) GenericCells();
      return;
    }
    if (!table_kernels_) GenericReset();
    RunPhase(kSecond);
    if (!table_kernels_) GenericOutput();
  }

  void DoPhase(int phase, const Blocks& units) override {
    const Product product = phase == kFirst ? FirstProduct() : SecondProduct();
    Multiply(product, units);
    if (h_planes_ == 2) JoinPlanes(product, units, no_bias_, 0, joined_);
    if (!table_kernels_) return;
    HiddenCellArgs step = StepOf(product, units);
    if (phase == kFirst && halves_) {
      step.h_scale = gru_.reset_scale;
      step.h_zero_point = static_cast<int32_t>(gru_.reset_zero_point);
      step.h = v_codes_;
      kernels_.gru_reset(step);
      return;
    }
    (halves_ ? kernels_.gru_output : kernels_.gru_cell)(step);
    CopyCodes(units.begin * kBlockUnits, std::min(units.end * kBlockUnits, hidden_));
  }

  float* State(int64_t r) const { return state_ + r * units_padded_; }

  Product FirstProduct() const {
    const int64_t gates = halves_ ? int64_t{kHiddenGate} : kGruGates;
    return {packed_.r, gates, packed_.h_multiplier.data(), CodesBefore(step_), h_zero_point_, Scales(h_scale_), acc_};
  }

  Product SecondProduct() const {
    return {weights_.r_hidden, 1, weights_.hidden_multiplier.data(), v_codes_, v_zero_point_, Scales(v_scale_), v_acc_};
  }

  const float* Scales(const float* rows) const { return config_.h_mode == CodeMode::kDynamicRow ? rows : nullptr; }

  // Those of a phase, of row r.
  HiddenProducts RowProducts(const Product& product, int64_t r) const {
    HiddenProducts products = ProductsOf(product, r);
    if (h_planes_ == 2) products.joined = joined_ + r * product.columns();
    return products;
  }

  static int64_t Column(int64_t gates, int64_t gate, int64_t unit) {
    return (unit / kBlockUnits * gates + gate) * kBlockUnits + unit % kBlockUnits;
  }

  float Activate(int gate, float g) const { return ActivateGate(config_.gates[gate], args_.gate_table, g); }

  void WriteState(int64_t r, int64_t unit, float z, float n) const {
    float* h = State(r) + unit;
    const float added = (1.0f - z) * n;
    const float kept = z * *h;
    *h = y_rows_[r][unit] = Limit(added + kept, -kLargestMagnitude, kLargestMagnitude);
  }

  void GenericCells() const {
    const Product product = FirstProduct();
    for (int64_t r = 0; r < active_; ++r) {
      const HiddenProducts u = RowProducts(product, r);
      const float* p = p_step_ + r * columns_;
      for (int64_t unit = 0; unit < hidden_; ++unit) {
        const int64_t update = Column(kGruGates, kUpdateGate, unit);
        const int64_t reset = Column(kGruGates, kResetGate, unit);
        const int64_t hidden = Column(kGruGates, kHiddenGate, unit);
        const float z = Activate(kUpdateGate, u[update] + p[update]);
        const float rest = Activate(kResetGate, u[reset] + p[reset]);
        const float product_part = rest * (u[hidden] + weights_.hidden_bias.data()[unit]);
        WriteState(r, unit, z, Activate(kHiddenGate, product_part + p[hidden]));
      }
      QuantizeHidden(r, State(r), CodesAfter(step_));
    }
    CopyCodes(0, hidden_);
  }

  void GenericReset() const {
    const Product product = FirstProduct();
    for (int64_t r = 0; r < active_; ++r) {
      const HiddenProducts u = RowProducts(product, r);
      const float* p = p_step_ + r * columns_;
      float* v = v_ + r * hidden_;
      for (int64_t unit = 0; unit < hidden_; ++unit) {
        const float update = u[Column(kHiddenGate, kUpdateGate, unit)] + p[Column(kGruGates, kUpdateGate, unit)];
        const float reset = u[Column(kHiddenGate, kResetGate, unit)] + p[Column(kGruGates, kResetGate, unit)];
        z_[r * units_padded_ + unit] = Activate(kUpdateGate, update);
        v[unit] = Activate(kResetGate, reset) * State(r)[unit];
      }
      QuantizeHidden(r, v, gru_.reset_scale, gru_.reset_zero_point, v_codes_, v_scale_);
    }
  }

  void GenericOutput() const {
    const Product product = SecondProduct();
    for (int64_t r = 0; r < active_; ++r) {
      const HiddenProducts u = RowProducts(product, r);
      const float* p = p_step_ + r * columns_;
      for (int64_t unit = 0; unit < hidden_; ++unit) {
        const float n = Activate(kHiddenGate, u[unit] + p[Column(kGruGates, kHiddenGate, unit)]);
        WriteState(r, unit, z_[r * units_padded_ + unit], n);
      }
      QuantizeHidden(r, State(r), CodesAfter(step_));
    }
    CopyCodes(0, hidden_);
  }

  const GruConfig& gru_;
  const PackedGru& weights_;
  const bool halves_;  // a step in two, with the codes of r * h between
  const int64_t output_columns_;

  float* state_ = nullptr;
  float* z_ = nullptr;
  float* v_ = nullptr;  // r * h
  uint8_t* v_codes_ = nullptr;
  int32_t* v_zero_point_ = nullptr;
  float* v_scale_ = nullptr;
  int32_t* v_acc_ = nullptr;
  float* joined_ = nullptr;  // products of 16-bit codes
  float* no_bias_ = nullptr;
};

}  // namespace

PackedGru PackGru(const GruConfig& config, const KernelTable& kernels, const GruParameters& parameters) {
  const int64_t hidden = config.hidden_size;
  PackedGru packed;
  PackInputSide(config, kernels, parameters, &packed);
  if (config.linear_before_reset) {
    packed.r = PackHiddenWeights(config, kernels, parameters.r, config.h_zero_point);
    packed.h_multiplier = PackedColumns(parameters.h_multiplier, kGruGates, hidden);
    packed.hidden_bias = AlignedArray<float>(BlockCount(hidden) * kBlockUnits);
    std::fill(std::copy(parameters.hidden_bias, parameters.hidden_bias + hidden, packed.hidden_bias.data()),
              packed.hidden_bias.data() + packed.hidden_bias.size(), 0.0f);
    return packed;
  }
  const SomeGates update_reset(parameters.r, kUpdateGate, 2);
  const SomeGates output(parameters.r, kHiddenGate, 1);
  packed.r = PackHiddenWeights(config, kernels, update_reset.matrix, config.h_zero_point);
  packed.h_multiplier = PackedColumns(parameters.h_multiplier, 2, hidden);
  packed.r_hidden = PackHiddenWeights(config, kernels, output.matrix, config.reset_zero_point);
  packed.hidden_multiplier = PackedColumns(parameters.h_multiplier + 2 * hidden, 1, hidden);
  return packed;
}

bool FindLinearTables(const GruConfig& config, const float* gate_table, LinearTables* linear) {
  return FindGateTables(config, gate_table, linear);
}

void RunGru(const GruConfig& config, const KernelTable& kernels, const PackedGru& packed, const CellArgs& args,
            Scratch* scratch, Parallel* parallel) {
  const Division division = Divide(config, packed, packed.r.bytes() + packed.r_hidden.bytes(),
                                   packed.r.start.size() + packed.r_hidden.start.size(), args, scratch->members());
  RunDivided(
      division, [&](int64_t first, int64_t stride) { return GruRun(config, kernels, packed, args, first, stride); },
      scratch, parallel);
}

}  // namespace rnnqc
