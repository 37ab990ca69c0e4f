#ifndef RNNQC_OPS_CELL_KERNEL_H_
#define RNNQC_OPS_CELL_KERNEL_H_

#include <memory>
#include <string>
#include <utility>

#include "cells/driver/kept_tables.h"
#include "cells/driver/layer.h"
#include "kernels/dispatch.h"
#include "ops/cell_inputs.h"
#include "ops/cell_operator.h"
#include "ort_support.h"

namespace rnnqc {

// The constant tables of a node; null if they are not constant.
struct ConstantTables {
  const float* gate;
  const float* cell;
  int64_t cell_size;
};

// A node of an operator. `Cell` defines its type of cell: Config, kHasCellTable, Operator(), Read(info),
// CheckInputs(config, inputs), CheckCellTable(config, shape), Extent(config, tables) and MakeLayer(config, kernels,
// parameters, tables).
template <typename Cell>
class CellKernel {
 public:
  CellKernel(const ort::OrtApi& api, const ort::KernelInfo& info, std::string context)
      : api_(api),
        context_(std::move(context)),
        config_(Cell::Read(info)),
        inputs_(api, Cell::Operator(), config_),
        kernels_(SelectedTable()) {
    inputs_.CheckDeclared(info);
    if (RequiredGateTableSize(config_) > 0 && !inputs_.present(kGateTable)) inputs_.FailWithoutGateTable();
    Cell::CheckInputs(config_, inputs_);
    const ort::OrtValue* inputs[kInputCount] = {};
    inputs_.ReadConstants(info, inputs);
    if (inputs[kGateTable] != nullptr) inputs_.CheckGateTable(inputs[kGateTable], RequiredGateTableSize(config_));
    if (HasCellTable(inputs)) cell_table_size_ = CheckedCellTableSize(inputs);
    KeepTables(inputs);
    if (inputs_.has_constant_weights()) layer_ = MakeLayer(inputs, inputs_.sizes());
  }

  const ort::OrtApi& api() const { return api_; }
  const std::string& context() const { return context_; }

  void Compute(ort::OrtKernelContext* context) {
    const ort::OrtValue* inputs[kInputCount] = {};
    inputs_.Read(context, inputs);
    CellArgs args{};
    const Sizes sizes = inputs_.Use(inputs, layer_ == nullptr ? -1 : layer_->input_size(), &args);
    if (kept_ != nullptr) {
      args.gate_table = kept_->gate();
    } else {
      inputs_.UseGateTable(inputs, RequiredGateTableSize(config_), &args);
    }
    UseCellTable(inputs, &args);
    if (kept_ != nullptr) args.linear = &kept_->linear();
    inputs_.UseOutputs(context, sizes, &args);

    const std::unique_ptr<Layer> layer_now = layer_ == nullptr ? MakeLayer(inputs, sizes) : nullptr;
    const Layer& layer = layer_ == nullptr ? *layer_now : *layer_;
    const ScratchPool::Lease scratch(&scratch_pool_);
    args.descending = scratch.get()->Turn(args.time);
    ContextParallel parallel(api_, context);
    layer.Run(args, scratch.get(), &parallel);
  }

 private:
  static bool HasCellTable(const ort::OrtValue* const* inputs) {
    return Cell::kHasCellTable && inputs[kCellTable] != nullptr;
  }

  int64_t CheckedCellTableSize(const ort::OrtValue* const* inputs) const {
    const ort::Shape shape = ort::ShapeOf(api_, inputs[kCellTable]);
    inputs_.CheckShape(kCellTable, shape, {-1});
    Cell::CheckCellTable(config_, shape);
    return shape[0];
  }

  ConstantTables TablesOf(const ort::OrtValue* const* inputs) const {
    ConstantTables tables{};
    if (inputs_.has_constant_gate_table()) tables.gate = ort::DataOf<const float>(api_, inputs[kGateTable]);
    if (cell_table_size_ > 0) tables.cell = ort::DataOf<const float>(api_, inputs[kCellTable]);
    tables.cell_size = cell_table_size_;
    return tables;
  }

  void KeepTables(const ort::OrtValue* const* inputs) {
    const ConstantTables tables = TablesOf(inputs);
    if (config_.is_grid() || tables.gate == nullptr) return;
    const auto gate_size = static_cast<size_t>(RequiredGateTableSize(config_));
    kept_ = KeptTables::Find(Cell::Extent(config_, tables), tables.gate, gate_size);
    if (kept_ == nullptr) return;
    inputs_.Skip(kGateTable);
    inputs_.Skip(kCellTable);
  }

  std::unique_ptr<Layer> MakeLayer(const ort::OrtValue* const* inputs, Sizes sizes) const {
    sizes.input = inputs_.CheckedInputSize(inputs, sizes);
    const CellInputs::Weights w = inputs_.UnpackedWeights(kW, inputs, sizes);
    const CellInputs::Weights r = inputs_.UnpackedWeights(kR, inputs, sizes);
    CellParameters parameters = inputs_.Vectors(inputs, sizes);
    parameters.w = w.matrix;
    parameters.r = r.matrix;
    // Where the tables have a linear form, runs do not read them.
    const ConstantTables tables = kept_ == nullptr ? TablesOf(inputs) : ConstantTables{};
    return Cell::MakeLayer(config_, kernels_, parameters, tables);
  }

  void UseCellTable(const ort::OrtValue* const* inputs, CellArgs* args) const {
    if (kept_ != nullptr) {
      args->cell_table_size = cell_table_size_;
      args->cell_table = kept_->cell();
    } else if (HasCellTable(inputs)) {
      args->cell_table_size = cell_table_size_ > 0 ? cell_table_size_ : CheckedCellTableSize(inputs);
      args->cell_table = ort::DataOf<const float>(api_, inputs[kCellTable]);
    }
  }

  const ort::OrtApi& api_;
  const std::string context_;
  const typename Cell::Config config_;
  CellInputs inputs_;
  const KernelTable& kernels_;
  int64_t cell_table_size_ = 0;             // of a constant one
  std::shared_ptr<const KeptTables> kept_;  // null if the tables are not constant or have no linear form
  std::unique_ptr<Layer> layer_;            // null if the weights are not constant
  ScratchPool scratch_pool_;
};

}  // namespace rnnqc

#endif  // RNNQC_OPS_CELL_KERNEL_H_
