#include "ops/quant_lstm_cell.h"

#include <memory>
#include <string>
#include <vector>

#include "cells/fixed_point/byte_cell.h"
#include "cells/fixed_point/byte_form.h"
#include "cells/fixed_point/lstm.h"
#include "cells/lstm/lstm.h"
#include "kernels/dispatch.h"
#include "ops/cell_inputs.h"
#include "ops/cell_operator.h"
#include "ops/quant_lstm_attributes.h"
#include "ort_support.h"

namespace rnnqc {
namespace {

using ort::OrtApi;
using ort::OrtKernelContext;
using ort::OrtValue;
using ort::Shape;

constexpr int64_t kMaxCellTableSize = 1 << 23;  // indices are formed in float

class QuantLstmCellKernel {
 public:
  QuantLstmCellKernel(const OrtApi& api, const ort::KernelInfo& info, std::string context)
      : api_(api),
        context_(std::move(context)),
        config_(ReadLstmConfig(info)),
        inputs_(api, kQuantLstmCell, config_),
        kernels_(SelectedTable()) {
    inputs_.CheckDeclared(info);
    CheckTables();
    CheckConstants(info);
  }

  const OrtApi& api() const { return api_; }
  const std::string& context() const { return context_; }

  void Compute(OrtKernelContext* context) {
    const OrtValue* inputs[kInputCount] = {};
    inputs_.Read(context, inputs);
    LstmArgs args{};
    const Sizes sizes = inputs_.Use(inputs, weights_.input_size(), &args);
    args.initial_c = inputs_.CheckedData<float>(kInitialC, inputs, sizes);
    UseTables(inputs, &args);
    inputs_.UseOutputs(context, sizes, &args);
    args.y_c = inputs_.StateOutput(context, 2, sizes);

    const PackedWeights weights_now = weights_.empty() ? Pack(inputs, sizes) : PackedWeights();
    const PackedWeights& weights = weights_.empty() ? weights_now : weights_;
    const ScratchPool::Lease scratch(&scratch_pool_);
    args.descending = scratch.get()->Turn(args.time);
    ContextParallel parallel(api_, context);
    if (weights.grid != nullptr) {
      RunGridLstm(config_, kernels_, *weights.grid, args, scratch.get(), &parallel);
    } else if (weights.grid32 != nullptr) {
      RunGridLstm(config_, kernels_, *weights.grid32, args, scratch.get(), &parallel);
    } else if (weights.bytes != nullptr) {
      RunByteCell(config_, kernels_, *weights.bytes, args, scratch.get(), &parallel);
    } else {
      RunLstm(config_, kernels_, *weights.tables, args, scratch.get(), &parallel);
    }
  }

 private:
  // What the weights became in one of the arithmetics.
  struct PackedWeights {
    std::unique_ptr<PackedLstm> tables;
    std::unique_ptr<PackedGridLstm<double>> grid;
    std::unique_ptr<PackedGridLstm<float>> grid32;
    std::unique_ptr<PackedByteCell> bytes;

    bool empty() const { return tables == nullptr && grid == nullptr && grid32 == nullptr && bytes == nullptr; }
    int64_t input_size() const {
      if (tables != nullptr) return tables->w.k;
      if (bytes != nullptr) return bytes->w.k;
      if (grid != nullptr) return grid->input_size();
      return grid32 != nullptr ? grid32->input_size() : -1;
    }
  };

  bool IsGrid() const { return config_.is_grid(); }

  void CheckTables() const {
    if (RequiredGateTableSize(config_) > 0 && !inputs_.present(kGateTable)) inputs_.FailWithoutGateTable();
    if (RequiredCellTableSize(config_) > 0 && !inputs_.present(kCellTable)) {
      throw std::invalid_argument("input cell_table is missing, but output_kind uses it");
    }
  }

  // Packs the weights if all of them are constant, and checks constant tables.
  void CheckConstants(const ort::KernelInfo& info) {
    const OrtValue* inputs[kInputCount] = {};
    inputs_.ReadConstants(info, inputs);
    if (inputs[kGateTable] != nullptr) inputs_.CheckGateTable(inputs[kGateTable], RequiredGateTableSize(config_));
    if (inputs[kCellTable] != nullptr) constant_cell_table_size_ = CheckedCellTableSize(inputs[kCellTable]);
    FindLinearForm(inputs);
    if (inputs_.has_constant_weights()) weights_ = Pack(inputs, inputs_.sizes());
  }

  void FindLinearForm(const OrtValue* const* inputs) {
    if (IsGrid() || inputs[kGateTable] == nullptr || inputs[kCellTable] == nullptr) return;
    auto linear = std::make_unique<LinearTables>();
    const float* gate_table = ort::DataOf<const float>(api_, inputs[kGateTable]);
    const float* cell_table = ort::DataOf<const float>(api_, inputs[kCellTable]);
    if (FindLinearTables(config_, gate_table, cell_table, constant_cell_table_size_, linear.get())) {
      linear_ = std::move(linear);
      inputs_.Keep(kGateTable, inputs[kGateTable], RequiredGateTableSize(config_));
      inputs_.Keep(kCellTable, inputs[kCellTable], constant_cell_table_size_);
    }
  }

  PackedWeights Pack(const OrtValue* const* inputs, Sizes sizes) const {
    sizes.input = inputs_.CheckedInputSize(inputs, sizes);
    PackedWeights packed;
    if (!IsGrid()) {
      packed.tables = std::make_unique<PackedLstm>(PackForTables(inputs, sizes));
      return packed;
    }
    const GridOperands operands = ReadGridOperands(inputs, sizes);
    if (config_.arithmetic == Arithmetic::kGrid) {
      packed.grid =
          std::make_unique<PackedGridLstm<double>>(PackGridLstm<double>(config_, kernels_, operands.parameters));
      return packed;
    }
    packed.bytes = PackForBytes(inputs, operands);
    if (packed.bytes == nullptr) {
      packed.grid32 =
          std::make_unique<PackedGridLstm<float>>(PackGridLstm<float>(config_, kernels_, operands.parameters));
    }
    return packed;
  }

  PackedLstm PackForTables(const OrtValue* const* inputs, const Sizes& sizes) const {
    const CellInputs::Weights w = inputs_.UnpackedWeights(kW, inputs, sizes);
    const CellInputs::Weights r = inputs_.UnpackedWeights(kR, inputs, sizes);
    LstmParameters parameters{};
    parameters.w = w.matrix;
    parameters.r = r.matrix;
    ReadVectors(inputs, sizes, &parameters);
    return PackLstm(config_, kernels_, parameters);
  }

  // What the arithmetic "grid" multiplies, with the memory behind it.
  struct GridOperands {
    CellInputs::GridWeights w;
    CellInputs::GridWeights r;
    GridLstmParameters parameters;
  };

  GridOperands ReadGridOperands(const OrtValue* const* inputs, const Sizes& sizes) const {
    GridOperands operands{};
    operands.w = inputs_.UnpackedGridWeights(kW, inputs, sizes);
    operands.r = inputs_.UnpackedGridWeights(kR, inputs, sizes);
    operands.parameters.w = operands.w.matrix;
    operands.parameters.r = operands.r.matrix;
    ReadVectors(inputs, sizes, &operands.parameters);
    return operands;
  }

  // Null if the cell has no such form, or if a table is not constant: to find the form takes long.
  std::unique_ptr<PackedByteCell> PackForBytes(const OrtValue* const* inputs, const GridOperands& operands) const {
    if (!inputs_.has_constant_gate_table() || constant_cell_table_size_ == 0) return nullptr;
    GridBytes form{};
    const float* gate_table = ort::DataOf<const float>(api_, inputs[kGateTable]);
    const float* cell_table = ort::DataOf<const float>(api_, inputs[kCellTable]);
    const GridLstmParameters& from = operands.parameters;
    if (!FindGridBytes(config_, kernels_, from, gate_table, cell_table, &form)) return nullptr;
    const CellParameters parameters{operands.w.narrow.matrix, operands.r.narrow.matrix, from.x_multiplier,
                                    from.h_multiplier, from.bias};
    return std::make_unique<PackedByteCell>(PackByteCell(config_, kernels_, parameters, form));
  }

  template <typename Parameters>
  void ReadVectors(const OrtValue* const* inputs, const Sizes& sizes, Parameters* parameters) const {
    inputs_.ReadVectors(inputs, sizes, parameters);
    parameters->peephole = inputs_.CheckedData<float>(kPeephole, inputs, sizes);
  }

  int64_t CheckedCellTableSize(const OrtValue* table) const {
    const Shape shape = ort::ShapeOf(api_, table);
    inputs_.CheckShape(kCellTable, shape, {-1});
    const int64_t required = RequiredCellTableSize(config_);
    if (IsGrid()) {
      if (shape[0] >= required) return shape[0];
      throw std::invalid_argument("input cell_table has shape " + ort::ToText(shape) + ", expected at least " +
                                  std::to_string(required) + " entries for grid_min and grid_max");
    }
    if (shape[0] < required || shape[0] % 2 != 0 || shape[0] > kMaxCellTableSize) {
      throw std::invalid_argument("input cell_table has shape " + ort::ToText(shape) +
                                  ", expected an even number of entries, at least " + std::to_string(required) +
                                  " and at most 2^23");
    }
    return shape[0];
  }

  void UseTables(const OrtValue* const* inputs, LstmArgs* args) const {
    inputs_.UseGateTable(inputs, RequiredGateTableSize(config_), args);
    if (inputs_.kept(kCellTable) != nullptr) {
      args->cell_table_size = constant_cell_table_size_;
      args->cell_table = inputs_.kept(kCellTable);
    } else if (inputs[kCellTable] != nullptr) {
      args->cell_table_size =
          constant_cell_table_size_ > 0 ? constant_cell_table_size_ : CheckedCellTableSize(inputs[kCellTable]);
      args->cell_table = ort::DataOf<const float>(api_, inputs[kCellTable]);
    }
    args->linear = linear_.get();
  }

  const OrtApi& api_;
  const std::string context_;
  const LstmConfig config_;
  CellInputs inputs_;
  const KernelTable& kernels_;
  int64_t constant_cell_table_size_ = 0;
  std::unique_ptr<LinearTables> linear_;  // null if the tables are not constant or have no such form
  PackedWeights weights_;                 // empty if the weights are not constant
  ScratchPool scratch_pool_;
};

}  // namespace

std::vector<RegisteredOperator> QuantLstmCellOps(const OrtApi* api, bool infers_shapes) {
  return MakeOperators<QuantLstmCellKernel>(api, kQuantLstmCell, infers_shapes);
}

}  // namespace rnnqc
