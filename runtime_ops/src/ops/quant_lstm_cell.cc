#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cells/fixed_point/byte_cell.h"
#include "cells/fixed_point/byte_form.h"
#include "cells/fixed_point/lstm.h"
#include "cells/lstm/lstm.h"
#include "ops/cell_attributes.h"
#include "ops/cell_kernel.h"
#include "ops/operators.h"

namespace rnnqc {
namespace {

constexpr int64_t kMaxCellTableSize = 1 << 23;  // indices are formed in float

struct Lstm {
  using Config = LstmConfig;
  static constexpr bool kHasCellTable = true;
  static const CellOperator& Operator() { return kQuantLstmCell; }
  static Config Read(const ort::KernelInfo& info) { return ReadLstmConfig(info); }

  static void CheckInputs(const Config& config, const CellInputs& inputs) {
    if (RequiredCellTableSize(config) > 0 && !inputs.present(kCellTable)) {
      throw std::invalid_argument("input cell_table is missing, but output_kind uses it");
    }
  }

  static void CheckCellTable(const Config& config, const ort::Shape& shape) {
    const int64_t required = RequiredCellTableSize(config);
    if (config.is_grid()) {
      if (shape[0] >= required) return;
      throw std::invalid_argument("input cell_table has shape " + ort::ToText(shape) + ", expected at least " +
                                  std::to_string(required) + " entries for grid_min and grid_max");
    }
    if (shape[0] < required || shape[0] % 2 != 0 || shape[0] > kMaxCellTableSize) {
      throw std::invalid_argument("input cell_table has shape " + ort::ToText(shape) +
                                  ", expected an even number of entries, at least " + std::to_string(required) +
                                  " and at most 2^23");
    }
  }

  static TableExtent Extent(const Config& config, const ConstantTables& tables) {
    if (tables.cell == nullptr) return {};
    return TablesOf(config, tables.gate, tables.cell, tables.cell_size);
  }

  static std::unique_ptr<Layer> MakeLayer(const Config& config, const KernelTable& kernels,
                                          const CellParameters& parameters, const ConstantTables& tables) {
    if (!config.is_grid()) return LstmLayer(config, kernels, parameters);
    GridBytes form{};
    // Finding the form takes long, so the tables have to be constant.
    if (tables.gate != nullptr && tables.cell != nullptr &&
        FindGridBytes(config, kernels, parameters, tables.gate, tables.cell, &form)) {
      return ByteLayer(config, kernels, parameters, form);
    }
    return GridLstmLayer(config, kernels, parameters);
  }
};

}  // namespace

std::vector<RegisteredOperator> QuantLstmCellOps(const ort::OrtApi* api, bool infers_shapes) {
  return MakeOperators<CellKernel<Lstm>>(api, kQuantLstmCell, infers_shapes);
}

}  // namespace rnnqc
