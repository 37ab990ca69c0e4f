#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cells/fixed_point/gru.h"
#include "cells/fixed_point/rnn.h"
#include "cells/gru_rnn/gru.h"
#include "cells/gru_rnn/gru_rnn_run.h"
#include "cells/gru_rnn/rnn.h"
#include "ops/cell_attributes.h"
#include "ops/cell_kernel.h"
#include "ops/operators.h"

namespace rnnqc {
namespace {

// Common to GRU and RNN.
struct HiddenCell {
  static constexpr bool kHasCellTable = false;
  static void CheckCellTable(const CellConfig&, const ort::Shape&) {}
  static TableExtent Extent(const CellConfig& config, const ConstantTables& tables) {
    return GateTablesOf(config, tables.gate);
  }
};

struct Gru : HiddenCell {
  using Config = GruConfig;
  static const CellOperator& Operator() { return kQuantGruCell; }
  static Config Read(const ort::KernelInfo& info) { return ReadGruConfig(info); }

  static void CheckInputs(const Config& config, const CellInputs& inputs) {
    if (inputs.present(kHiddenBias) == config.linear_before_reset) return;
    throw std::invalid_argument(
        std::string("input hidden_bias is ") + (config.linear_before_reset ? "missing" : "present") +
        ", but attribute linear_before_reset is " +
        (config.linear_before_reset ? "1; expected both or neither" : "0; expected both or neither"));
  }

  static std::unique_ptr<Layer> MakeLayer(const Config& config, const KernelTable& kernels,
                                          const CellParameters& parameters, const ConstantTables&) {
    return (config.is_grid() ? GridGruLayer : GruLayer)(config, kernels, parameters);
  }
};

struct Rnn : HiddenCell {
  using Config = RnnConfig;
  static const CellOperator& Operator() { return kQuantRnnCell; }
  static Config Read(const ort::KernelInfo& info) { return ReadRnnConfig(info); }
  static void CheckInputs(const Config&, const CellInputs&) {}

  static std::unique_ptr<Layer> MakeLayer(const Config& config, const KernelTable& kernels,
                                          const CellParameters& parameters, const ConstantTables&) {
    return (config.is_grid() ? GridRnnLayer : RnnLayer)(config, kernels, parameters);
  }
};

}  // namespace

std::vector<RegisteredOperator> QuantGruCellOps(const ort::OrtApi* api, bool infers_shapes) {
  return MakeOperators<CellKernel<Gru>>(api, kQuantGruCell, infers_shapes);
}

std::vector<RegisteredOperator> QuantRnnCellOps(const ort::OrtApi* api, bool infers_shapes) {
  return MakeOperators<CellKernel<Rnn>>(api, kQuantRnnCell, infers_shapes);
}

}  // namespace rnnqc
