#include "ops/quant_gru_cell.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cells/fixed_point/gru.h"
#include "cells/fixed_point/rnn.h"
#include "cells/gru_rnn/gru.h"
#include "cells/gru_rnn/rnn.h"
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
  using Tables = PackedGru;
  using Grid = PackedGridGru;
  using TableParameters = GruParameters;
  using GridParameters = GridGruParameters;
  static const CellOperator& Operator() { return kQuantGruCell; }
  static Config Read(const ort::KernelInfo& info) { return ReadGruConfig(info); }

  static void CheckInputs(const Config& config, const CellInputs& inputs) {
    if (inputs.present(kHiddenBias) == config.linear_before_reset) return;
    throw std::invalid_argument(
        std::string("input hidden_bias is ") + (config.linear_before_reset ? "missing" : "present") +
        ", but attribute linear_before_reset is " +
        (config.linear_before_reset ? "1; expected both or neither" : "0; expected both or neither"));
  }

  template <typename Parameters>
  static void ReadOwn(const CellInputs& inputs, const OrtValue* const* values, const Sizes& sizes,
                      Parameters* parameters) {
    parameters->hidden_bias = inputs.CheckedData<float>(kHiddenBias, values, sizes);
  }

  static constexpr auto PackTables = PackGru;
  static constexpr auto PackGrid = PackGridGru;
  static constexpr auto RunTables = RunGru;
  static constexpr auto RunGrid = RunGridGru;
};

struct Rnn {
  using Config = RnnConfig;
  using Tables = PackedCell;
  using Grid = PackedGrid<double>;
  using TableParameters = CellParameters;
  using GridParameters = rnnqc::GridParameters;
  static const CellOperator& Operator() { return kQuantRnnCell; }
  static Config Read(const ort::KernelInfo& info) { return ReadRnnConfig(info); }
  static void CheckInputs(const Config&, const CellInputs&) {}
  template <typename Parameters>
  static void ReadOwn(const CellInputs&, const OrtValue* const*, const Sizes&, Parameters*) {}

  static constexpr auto PackTables = PackRnn;
  static constexpr auto PackGrid = PackGridRnn;
  static constexpr auto RunTables = RunRnn;
  static constexpr auto RunGrid = RunGridRnn;
};

// Of a cell without a state besides the hidden one.
template <typename Cell>
class HiddenCellKernel {
 public:
  HiddenCellKernel(const OrtApi& api, const ort::KernelInfo& info, std::string context)
      : api_(api),
        context_(std::move(context)),
        config_(Cell::Read(info)),
        inputs_(api, Cell::Operator(), config_),
        kernels_(SelectedTable()) {
    inputs_.CheckDeclared(info);
    Cell::CheckInputs(config_, inputs_);
    const int64_t table_size = RequiredGateTableSize(config_);
    if (table_size > 0 && !inputs_.present(kGateTable)) inputs_.FailWithoutGateTable();
    const OrtValue* inputs[kInputCount] = {};
    inputs_.ReadConstants(info, inputs);
    if (inputs[kGateTable] != nullptr) {
      inputs_.CheckGateTable(inputs[kGateTable], table_size);
      if (!config_.is_grid()) FindLinearForm(ort::DataOf<const float>(api_, inputs[kGateTable]));
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
    const Sizes sizes = inputs_.Use(inputs, weights_.input_size(), &args);
    inputs_.UseGateTable(inputs, RequiredGateTableSize(config_), &args);
    args.linear = linear_.get();
    inputs_.UseOutputs(context, sizes, &args);

    const PackedWeights weights_now = weights_.empty() ? Pack(inputs, sizes) : PackedWeights();
    const PackedWeights& weights = weights_.empty() ? weights_now : weights_;
    const ScratchPool::Lease scratch(&scratch_pool_);
    args.descending = scratch.get()->Turn(args.time);
    ContextParallel parallel(api_, context);
    if (weights.grid != nullptr) {
      Cell::RunGrid(config_, kernels_, *weights.grid, args, scratch.get(), &parallel);
    } else {
      Cell::RunTables(config_, kernels_, *weights.tables, args, scratch.get(), &parallel);
    }
  }

 private:
  // What the weights became in one of the arithmetics.
  struct PackedWeights {
    std::unique_ptr<typename Cell::Tables> tables;
    std::unique_ptr<typename Cell::Grid> grid;

    bool empty() const { return tables == nullptr && grid == nullptr; }
    int64_t input_size() const {
      if (grid != nullptr) return grid->input_size();
      return tables != nullptr ? tables->w.k : -1;
    }
  };

  void FindLinearForm(const float* gate_table) {
    auto linear = std::make_unique<LinearTables>();
    if (FindLinearTables(config_, gate_table, linear.get())) linear_ = std::move(linear);
  }

  PackedWeights Pack(const OrtValue* const* inputs, Sizes sizes) const {
    sizes.input = inputs_.CheckedInputSize(inputs, sizes);
    PackedWeights packed;
    if (config_.is_grid()) {
      const CellInputs::GridWeights w = inputs_.UnpackedGridWeights(kW, inputs, sizes);
      const CellInputs::GridWeights r = inputs_.UnpackedGridWeights(kR, inputs, sizes);
      const auto parameters = Parameters<typename Cell::GridParameters>(w.matrix, r.matrix, inputs, sizes);
      packed.grid = std::make_unique<typename Cell::Grid>(Cell::PackGrid(config_, kernels_, parameters));
    } else {
      const CellInputs::Weights w = inputs_.UnpackedWeights(kW, inputs, sizes);
      const CellInputs::Weights r = inputs_.UnpackedWeights(kR, inputs, sizes);
      const auto parameters = Parameters<typename Cell::TableParameters>(w.matrix, r.matrix, inputs, sizes);
      packed.tables = std::make_unique<typename Cell::Tables>(Cell::PackTables(config_, kernels_, parameters));
    }
    return packed;
  }

  template <typename Result, typename Weights>
  Result Parameters(const Weights& w, const Weights& r, const OrtValue* const* inputs, const Sizes& sizes) const {
    Result parameters{};
    parameters.w = w;
    parameters.r = r;
    inputs_.ReadVectors(inputs, sizes, &parameters);
    Cell::ReadOwn(inputs_, inputs, sizes, &parameters);
    return parameters;
  }

  const OrtApi& api_;
  const std::string context_;
  const typename Cell::Config config_;
  CellInputs inputs_;
  const KernelTable& kernels_;
  std::unique_ptr<LinearTables> linear_;  // null if the table is not constant or has no such form
  PackedWeights weights_;                 // empty if the weights are not constant
  ScratchPool scratch_pool_;
};

}  // namespace

std::vector<RegisteredOperator> QuantGruCellOps(const OrtApi* api, bool infers_shapes) {
  return MakeOperators<HiddenCellKernel<Gru>>(api, kQuantGruCell, infers_shapes);
}

std::vector<RegisteredOperator> QuantRnnCellOps(const OrtApi* api, bool infers_shapes) {
  return MakeOperators<HiddenCellKernel<Rnn>>(api, kQuantRnnCell, infers_shapes);
}

}  // namespace rnnqc
