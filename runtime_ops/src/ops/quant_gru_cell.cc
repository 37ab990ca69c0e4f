#include "ops/quant_gru_cell.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "cells/gru_cell.h"
#include "cells/rnn_cell.h"
#include "kernels/dispatch.h"
#include "ops/cell_attributes.h"
#include "ops/cell_inputs.h"
#include "ops/cell_operator.h"
#include "ort_support.h"

namespace rnnqc {
namespace {

using ort::OrtApi;
using ort::OrtKernelContext;
using ort::OrtValue;

struct Gru {
  using Config = GruConfig;
  using Packed = PackedGru;
  static const CellOperator& Operator() { return kQuantGruCell; }
  static Config Read(const ort::KernelInfo& info) { return ReadGruConfig(info); }

  static void CheckInputs(const Config& config, const CellInputs& inputs) {
    if (inputs.present(kHiddenBias) == config.linear_before_reset) return;
    throw std::invalid_argument(
        std::string("input hidden_bias is ") + (config.linear_before_reset ? "missing" : "present") +
        ", but attribute linear_before_reset is " +
        (config.linear_before_reset ? "1; expected both or neither" : "0; expected both or neither"));
  }

  static Packed Pack(const Config& config, const KernelTable& kernels, const CellInputs& inputs,
                     const CellParameters& common, const OrtValue* const* values, const Sizes& sizes) {
    GruParameters parameters{};
    static_cast<CellParameters&>(parameters) = common;
    parameters.hidden_bias = inputs.CheckedData<float>(kHiddenBias, values, sizes);
    return PackGru(config, kernels, parameters);
  }

  static constexpr auto Run = RunGru;
};

struct Rnn {
  using Config = RnnConfig;
  using Packed = PackedCell;
  static const CellOperator& Operator() { return kQuantRnnCell; }
  static Config Read(const ort::KernelInfo& info) { return ReadRnnConfig(info); }
  static void CheckInputs(const Config&, const CellInputs&) {}

  static Packed Pack(const Config& config, const KernelTable& kernels, const CellInputs&, const CellParameters& common,
                     const OrtValue* const*, const Sizes&) {
    return PackRnn(config, kernels, common);
  }

  static constexpr auto Run = RunRnn;
};

// Of a cell without a state besides the hidden one.
template <typename Cell>
class HiddenCellKernel {
 public:
  HiddenCellKernel(const OrtApi& api, const ort::KernelInfo& info, std::string context)
      : api_(api),
        context_(std::move(context)),
        config_(Cell::Read(info)),
        inputs_(api, Cell::Operator(), config_, false),
        kernels_(SelectedTable()) {
    inputs_.CheckDeclared(info);
    Cell::CheckInputs(config_, inputs_);
    const int64_t table_size = RequiredGateTableSize(config_);
    if (table_size > 0 && !inputs_.present(kGateTable)) {
      throw std::invalid_argument("input gate_table is missing, but a kind in gate_kinds uses it");
    }
    const OrtValue* inputs[kInputCount] = {};
    inputs_.ReadConstants(info, inputs);
    if (inputs[kGateTable] != nullptr) {
      inputs_.CheckGateTable(inputs[kGateTable], table_size);
      FindLinearForm(ort::DataOf<const float>(api_, inputs[kGateTable]));
      if (linear_ != nullptr) inputs_.Keep(kGateTable, inputs[kGateTable], table_size);
    }
    if (inputs_.has_constant_weights()) weights_ = Pack(inputs, inputs_.sizes());
  }

  const OrtApi& api() const { return api_; }
  const std::string& context() const { return context_; }

  void Compute(OrtKernelContext* context) {
    const OrtValue* inputs[kInputCount] = {};
    inputs_.Read(context, inputs);
    CellArgs args{};
    const Sizes sizes = inputs_.Use(inputs, weights_ == nullptr ? -1 : weights_->w.k, &args);
    inputs_.UseGateTable(inputs, RequiredGateTableSize(config_), &args);
    args.linear = linear_.get();
    inputs_.UseOutputs(context, sizes, &args);

    const std::unique_ptr<Packed> weights_now = weights_ == nullptr ? Pack(inputs, sizes) : nullptr;
    const Packed& weights = weights_ == nullptr ? *weights_now : *weights_;
    const ScratchPool::Lease scratch(&scratch_pool_);
    ContextParallel parallel(api_, context);
    Cell::Run(config_, kernels_, weights, args, scratch.get(), &parallel);
  }

 private:
  using Packed = typename Cell::Packed;

  void FindLinearForm(const float* gate_table) {
    auto linear = std::make_unique<LinearTables>();
    if (FindLinearTables(config_, gate_table, linear.get())) linear_ = std::move(linear);
  }

  std::unique_ptr<Packed> Pack(const OrtValue* const* inputs, Sizes sizes) const {
    sizes.input = inputs_.CheckedInputSize(inputs, sizes);
    const CellInputs::Weights w = inputs_.UnpackedWeights(kW, inputs, sizes);
    const CellInputs::Weights r = inputs_.UnpackedWeights(kR, inputs, sizes);
    CellParameters parameters{};
    parameters.w = w.matrix;
    parameters.r = r.matrix;
    inputs_.ReadVectors(inputs, sizes, &parameters);
    return std::make_unique<Packed>(Cell::Pack(config_, kernels_, inputs_, parameters, inputs, sizes));
  }

  const OrtApi& api_;
  const std::string context_;
  const typename Cell::Config config_;
  CellInputs inputs_;
  const KernelTable& kernels_;
  std::unique_ptr<LinearTables> linear_;  // null if the table is not constant or has no such form
  std::unique_ptr<Packed> weights_;       // null if the weights are not constant
  ScratchPool scratch_pool_;
};

}  // namespace

const ort::OrtCustomOp* QuantGruCellOp(const OrtApi* api, bool infers_shapes) {
  static const RegisteredOperator op = MakeOperator<HiddenCellKernel<Gru>>(api, kQuantGruCell, infers_shapes);
  return &op;
}

const ort::OrtCustomOp* QuantRnnCellOp(const OrtApi* api, bool infers_shapes) {
  static const RegisteredOperator op = MakeOperator<HiddenCellKernel<Rnn>>(api, kQuantRnnCell, infers_shapes);
  return &op;
}

}  // namespace rnnqc
