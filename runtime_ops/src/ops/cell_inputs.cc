#include "ops/cell_inputs.h"

#include <algorithm>
#include <stdexcept>

#include "cells/driver/row_format.h"
#include "ops/packed_weights.h"

namespace rnnqc {

using ort::OrtKernelContext;
using ort::OrtValue;
using ort::Shape;

namespace {

constexpr bool IsZeroPoint(size_t input) { return input == kWZeroPoint || input == kRZeroPoint; }
constexpr bool IsWeights(size_t input) { return input == kW || input == kR; }
constexpr bool IsFurtherPart(size_t input) { return input >= kX2 && input < kXFactor; }

// Groups of rows that share a multiplier; negative if not known or if there are none.
int64_t Groups(int64_t rows, int64_t group_size) {
  return rows < 0 || group_size == 0 ? -1 : GroupCount(rows, group_size);
}

void CheckRowScales(const float* scales, const Sizes& sizes) {
  for (int64_t row = 0; row < sizes.time * sizes.batch; ++row) {
    if (scales[row] >= 0 && scales[row] <= kLargestMagnitude) continue;
    throw std::invalid_argument("input X_scale has " + std::to_string(scales[row]) + " for row " + std::to_string(row) +
                                " of [T * B], expected 0 .. 2^60");
  }
}

void CheckLengths(const int32_t* lens, const Sizes& sizes) {
  for (int64_t b = 0; lens != nullptr && b < sizes.batch; ++b) {
    if (lens[b] >= 0 && lens[b] <= sizes.time) continue;
    throw std::invalid_argument("input sequence_lens[" + std::to_string(b) + "] is " + std::to_string(lens[b]) +
                                ", expected 0 .. T = " + std::to_string(sizes.time));
  }
}

}  // namespace

const CellOperator kQuantLstmCell = {"QuantLSTMCell", 24, kGates, "cell_table", true, 4};
const CellOperator kQuantGruCell = {"QuantGRUCell", 16, 3, "hidden_bias", false, 3};
const CellOperator kQuantRnnCell = {"QuantRNNCell", 8, 1, nullptr, false, 3};

const char* CellOperator::input_name(size_t input) const {
  static constexpr const char* kNames[kX2] = {"X",
                                              "W",
                                              "R",
                                              "x_multiplier",
                                              "h_multiplier",
                                              "B",
                                              "gate_table",
                                              nullptr,
                                              "sequence_lens",
                                              "initial_h",
                                              "initial_c",
                                              "P",
                                              "W_zero_point",
                                              "R_zero_point",
                                              "W_group_multiplier",
                                              "R_group_multiplier",
                                              "X_scale"};
  static constexpr const char* kParts[kMostParts - 1] = {"X2", "X3", "X4"};
  if (IsFurtherPart(input)) return kParts[input - kX2];
  if (input == kXFactor) return "X_factor";
  if (input == kCellTable) return table_name;
  return (input == kInitialC || input == kPeephole) && !has_cell_state ? nullptr : kNames[input];
}

ort::ElementType OnlyType(size_t input) {
  if (input == kX || IsWeights(input)) return ort::kUndefined;
  if (input == kWGroupMultiplier || input == kRGroupMultiplier) return ort::kUint8;
  return input == kSequenceLens || IsZeroPoint(input) ? ort::kInt32 : ort::kFloat;
}

// Whether an input becomes part of the packed weights.
bool CellInputs::IsPacked(size_t input) const {
  return (input >= kW && input <= kBias) || input == kPeephole || IsZeroPoint(input) || input == kWGroupMultiplier ||
         input == kRGroupMultiplier || (input == kHiddenBias && op_.gates == 3);
}

Shape CellInputs::ExpectedShape(size_t input, const Sizes& s) const {
  const int64_t columns = op_.gates * s.hidden;
  const auto stored = [columns](bool packed, int64_t bits, int64_t wide_columns) {
    return packed ? PackedRow(columns, bits, wide_columns) : columns;
  };
  switch (input) {
    case kX:
      return {s.time, s.batch, has_parts_ ? -1 : s.input};
    case kXScale:
      return {s.time, s.batch, 1};
    case kW:
      return {s.input, stored(s.packed_w, s.w_bits, s.w_wide_columns)};
    case kR:
      return {s.hidden, stored(s.packed_r, s.r_bits, s.r_wide_columns)};
    case kWGroupMultiplier:
      return {Groups(s.input, s.w_group_size), columns};
    case kRGroupMultiplier:
      return {Groups(s.hidden, s.r_group_size), columns};
    case kXMultiplier:
    case kHMultiplier:
    case kBias:
    case kWZeroPoint:
    case kRZeroPoint:
      return {columns};
    case kHiddenBias:  // or cell_table
      return {op_.gates == 3 ? s.hidden : -1};
    case kSequenceLens:
      return {s.batch};
    case kInitialH:
    case kInitialC:
      return s.state_axis ? Shape{1, s.batch, s.hidden} : Shape{s.batch, s.hidden};
    case kPeephole:
      return {3 * s.hidden};
    case kXFactor:
      return {s.input};
    default:
      return IsFurtherPart(input) ? Shape{s.time, s.batch, -1} : Shape{-1};
  }
}

std::string CellInputs::ShapeInWords(size_t input, const Sizes& s) const {
  const auto multiple = [](int64_t count) { return (count == 1 ? "" : std::to_string(count)) + "H"; };
  const std::string columns = multiple(op_.gates);
  const auto stored = [&](bool packed, int64_t bits, int64_t wide_columns) {
    if (!packed) return columns;
    const bool halves = bits == kFewestBits && op_.gates % 2 == 0;
    const std::string row = halves ? multiple(op_.gates / 2) : PackedRowInWords(columns, bits);
    return wide_columns > 0 ? row + " + " + std::to_string(PackedRow(wide_columns, kFewestBits)) : row;
  };
  switch (input) {
    case kX:
      return has_parts_ ? "[T, B, I1]" : "[T, B, I]";
    case kXScale:
      return "[T, B, 1]";
    case kW:
      return "[I, " + stored(s.packed_w, s.w_bits, s.w_wide_columns) + "]";
    case kR:
      return "[H, " + stored(s.packed_r, s.r_bits, s.r_wide_columns) + "]";
    case kWGroupMultiplier:
    case kRGroupMultiplier:
      return "[G, " + columns + "]";
    case kGateTable:
      return "[N]";
    case kHiddenBias:
      return op_.gates == 3 ? "[H]" : "[M]";
    case kSequenceLens:
      return "[B]";
    case kInitialH:
    case kInitialC:
      return s.state_axis ? "[1, B, H]" : "[B, H]";
    case kPeephole:
      return "[3H]";
    case kXFactor:
      return "[I]";
    default:
      return IsFurtherPart(input) ? "[T, B, I" + std::to_string(input - kX2 + 2) + "]" : "[" + columns + "]";
  }
}

void CellInputs::CheckShape(size_t input, const Shape& found, const Shape& expected, const Sizes& sizes) const {
  if (ort::Fits(found, expected)) return;
  throw std::invalid_argument("input " + std::string(op_.input_name(input)) + " has shape " + ort::ToText(found) +
                              ", expected " + ShapeInWords(input, sizes) + " = " + ort::ToText(expected));
}

Shape CellInputs::CheckedShape(size_t input, const OrtValue* value, const Sizes& sizes) const {
  Shape shape = ort::ShapeOf(api_, value);
  CheckShape(input, shape, ExpectedShape(input, sizes), sizes);
  return shape;
}

ort::ElementType CellInputs::ExpectedType(size_t input) const {
  if (input == kX && config_.x_mode == CodeMode::kCodes) return ort::kUint8;
  if (input == kX) return config_.x_mode == CodeMode::kRowCodes ? ort::kInt8 : ort::kFloat;
  return IsWeights(input) ? ort::kInt8 : OnlyType(input);
}

void CellInputs::CheckInput(size_t i, const ort::TensorType& type, Sizes* sizes) {
  const char* name = op_.input_name(i);
  if (name == nullptr || (IsZeroPoint(i) && !config_.is_grid())) {
    throw std::invalid_argument("input " + std::to_string(i) + " " + (name == nullptr ? "(reserved)" : name) +
                                " is reserved for later versions. Use a newer rnnqc library.");
  }
  const ort::ElementType expected = ExpectedType(i);
  const bool packed = IsWeights(i) && type.element == ort::kUint8;
  const bool wide = IsWeights(i) && type.element == ort::kInt16 && config_.is_grid();
  if (i == kW) sizes->packed_w = sizes_.packed_w = packed;
  if (i == kR) sizes->packed_r = sizes_.packed_r = packed;
  if (i == kW) sizes->wide_w = sizes_.wide_w = wide;
  if (i == kR) sizes->wide_r = sizes_.wide_r = wide;
  if (type.element != expected && !packed && !wide) {
    throw std::invalid_argument(
        "input " + std::string(name) + " has element type " + ort::ToText(type.element) + ", expected " +
        ort::ToText(expected) +
        (IsWeights(i) ? config_.is_grid() ? ", int16 or uint8 (packed weights)" : " or uint8 (packed weights)" : "") +
        (i == kX ? " for this x_mode" : "") + ". Other types may need a newer rnnqc library.");
  }
  if (type.ranked) CheckShape(i, type.shape, ExpectedShape(i, *sizes), *sizes);
  if (i == kX && type.ranked && !has_parts_) sizes->input = type.shape[2];
}

void CellInputs::CheckDeclared(const ort::KernelInfo& info) {
  sizes_.hidden = config_.hidden_size;
  sizes_.state_axis = config_.state_direction_axis;
  sizes_.w_group_size = config_.w_group_size;
  sizes_.r_group_size = config_.r_group_size;
  sizes_.w_bits = config_.w_bits;
  sizes_.r_bits = config_.r_bits;
  sizes_.w_wide_columns = config_.w_wide_columns;
  sizes_.r_wide_columns = config_.r_wide_columns;
  Sizes sizes = sizes_;
  ReadPlaces(info);
  for (size_t i = kX2; i < kXFactor; ++i) {
    ort::TensorType type;
    has_parts_ = has_parts_ || info.InputType(node_index_[i], &type);
  }
  for (size_t i = 0; i < kInputCount; ++i) {
    ort::TensorType type;
    present_[i] = info.InputType(node_index_[i], &type);
    if (present_[i]) {
      CheckInput(i, type, &sizes);
    } else if (i < kGateTable) {
      throw std::invalid_argument("input " + std::string(op_.input_name(i)) + " is missing");
    }
  }
  CheckWidth("W", sizes.packed_w, "w_bits", config_.w_bits);
  CheckWidth("R", sizes.packed_r, "r_bits", config_.r_bits);
  CheckGroups("W", sizes.packed_w, "w_group_size", config_.w_group_size, present_[kWGroupMultiplier]);
  CheckGroups("R", sizes.packed_r, "r_group_size", config_.r_group_size, present_[kRGroupMultiplier]);
  CheckScales();
  CheckFloatInput();
  CheckOutputs(info);
}

// The inputs of a node without gaps are those that the attribute input_places lists. Where it is absent each input has
// its own place, and absent ones have no name.
void CellInputs::ReadPlaces(const ort::KernelInfo& info) {
  const size_t count = info.InputCount();
  std::vector<int64_t> places;
  if (!info.Read("input_places", &places)) {
    for (size_t i = 0; i < kInputCount; ++i) node_index_[i] = i;
    return;
  }
  bool valid = places.size() == count;
  for (size_t k = 0; valid && k < count; ++k) {
    valid = places[k] < int64_t{kInputCount} && places[k] >= (k == 0 ? 0 : places[k - 1] + 1);
  }
  if (!valid) {
    throw std::invalid_argument("attribute input_places: expected the place of each of the node's " +
                                std::to_string(count) + " inputs among the operator's " + std::to_string(kInputCount) +
                                ", in rising order");
  }
  std::fill(node_index_, node_index_ + kInputCount, count);
  for (size_t k = 0; k < count; ++k) node_index_[places[k]] = k;
}

void CellInputs::CheckWidth(const std::string& matrix, bool packed, const char* attribute, int64_t bits) {
  if (packed || bits == kFewestBits) return;
  throw std::invalid_argument("attribute " + std::string(attribute) + " is " + std::to_string(bits) + ", but " +
                              matrix + " is not packed; expected packed weights (uint8)");
}

void CellInputs::CheckGroups(const std::string& matrix, bool packed, const char* attribute, int64_t group_size,
                             bool multipliers) {
  if (multipliers != (group_size > 0)) {
    throw std::invalid_argument("input " + matrix + "_group_multiplier is " + (multipliers ? "present" : "missing") +
                                ", but attribute " + attribute + " is " + std::to_string(group_size) +
                                "; expected both or neither");
  }
  if (multipliers && !packed) {
    throw std::invalid_argument("input " + matrix + "_group_multiplier is present, but " + matrix +
                                " is int8; expected packed weights (uint8)");
  }
}

void CellInputs::CheckScales() const {
  const bool needed = config_.x_mode == CodeMode::kRowCodes;
  if (present_[kXScale] == needed) return;
  throw std::invalid_argument(std::string("input X_scale is ") + (needed ? "missing" : "present") +
                              ", but attribute x_mode is " + (needed ? "" : "not ") + "\"row_codes\"");
}

void CellInputs::CheckFloatInput() const {
  if (has_parts_ && !present_[kX2]) {
    throw std::invalid_argument("input X2 is missing, but a part of X behind it is present");
  }
  if (config_.x_mode == CodeMode::kDynamicRow || config_.x_mode == CodeMode::kStatic) return;
  for (const size_t input : {size_t{kX2}, size_t{kXFactor}}) {
    if (!present_[input]) continue;
    throw std::invalid_argument("input " + std::string(op_.input_name(input)) +
                                " is present, but attribute x_mode is not \"dynamic_row\" or \"static\"");
  }
}

void CellInputs::CheckOutputs(const ort::KernelInfo& info) {
  for (size_t i = 0; i < op_.output_count; ++i) has_output_[i] = info.HasOutput(i);
  if (!has_output_[op_.codes_output()]) return;
  if (config_.h_mode != CodeMode::kStatic) {
    throw std::invalid_argument("output Y_codes exists for h_mode \"static\" only, but h_mode is \"dynamic_row\"");
  }
  if (config_.h_bits != 8) {
    throw std::invalid_argument("output Y_codes exists for h_bits 8 only, but h_bits is " +
                                std::to_string(config_.h_bits));
  }
}

void CellInputs::ReadConstants(const ort::KernelInfo& info, const OrtValue** inputs) {
  for (size_t i = 0; i < kInputCount; ++i) inputs[i] = present_[i] ? info.ConstantInput(node_index_[i]) : nullptr;
  gate_table_is_constant_ = inputs[kGateTable] != nullptr;
  constant_weights_ = true;
  for (size_t i = 0; i < kInputCount; ++i) {
    constant_weights_ = constant_weights_ && !(IsPacked(i) && present_[i] && inputs[i] == nullptr);
  }
  for (size_t i = 0; i < kInputCount; ++i) {
    if (present_[i] && !(constant_weights_ && IsPacked(i))) needed_[needed_count_++] = i;
  }
}

void CellInputs::Skip(size_t input) {
  needed_count_ = static_cast<size_t>(std::remove(needed_, needed_ + needed_count_, input) - needed_);
}

void CellInputs::Read(OrtKernelContext* context, const OrtValue** inputs) const {
  for (size_t i = 0; i < needed_count_; ++i) {
    const size_t input = needed_[i];
    ort::Check(api_, api_.KernelContext_GetInput()(context, node_index_[input], &inputs[input]));
  }
}

Sizes CellInputs::Use(const OrtValue* const* inputs, int64_t input_size, CellArgs* args) const {
  const Sizes sizes = UseX(inputs, input_size, args);
  args->sequence_lens = CheckedData<int32_t>(kSequenceLens, inputs, sizes);
  CheckLengths(args->sequence_lens, sizes);
  args->initial_h = CheckedData<float>(kInitialH, inputs, sizes);
  args->initial_c = CheckedData<float>(kInitialC, inputs, sizes);
  return sizes;
}

Sizes CellInputs::UseX(const OrtValue* const* inputs, int64_t input_size, CellArgs* args) const {
  Sizes sizes = sizes_;
  sizes.input = input_size;
  const Shape shape = CheckedShape(kX, inputs[kX], sizes);
  sizes.time = shape[0];
  sizes.batch = shape[1];
  sizes.input = shape[2];
  if (sizes.time < 1 || sizes.batch < 1) {
    throw std::invalid_argument("input X has shape " + ort::ToText(shape) +
                                ", expected [T, B, I] with T >= 1 and B >= 1: empty sequences and batches are not "
                                "supported");
  }
  args->time = sizes.time;
  args->batch = sizes.batch;
  if (config_.x_mode == CodeMode::kCodes) {
    args->x_codes = ort::DataOf<const uint8_t>(api_, inputs[kX]);
  } else if (config_.x_mode == CodeMode::kRowCodes) {
    args->x_rows = ort::DataOf<const int8_t>(api_, inputs[kX]);
    args->x_scale = CheckedData<float>(kXScale, inputs, sizes);
    CheckRowScales(args->x_scale, sizes);
  } else {
    sizes.input = UseParts(inputs, sizes, input_size, args);
    args->x_factor = CheckedData<float>(kXFactor, inputs, sizes);
  }
  return sizes;
}

// Takes X, of these sizes, and what follows it along the last axis; returns the size of all of it.
int64_t CellInputs::UseParts(const OrtValue* const* inputs, const Sizes& sizes, int64_t input_size,
                             CellArgs* args) const {
  int64_t total = 0;
  const auto take = [&](size_t input, int64_t size) {
    if (size > 0) args->x_parts[args->x_part_count++] = {ort::DataOf<const float>(api_, inputs[input]), size};
    total += size;
  };
  take(kX, sizes.input);
  if (!has_parts_) return total;
  for (size_t input = kX2; input < kXFactor; ++input) {
    if (inputs[input] != nullptr) take(input, CheckedShape(input, inputs[input], sizes)[2]);
  }
  if (input_size < 0 || total == input_size) return total;
  throw std::invalid_argument("input X and its further parts have " + std::to_string(total) +
                              " columns, expected I = " + std::to_string(input_size));
}

void CellInputs::UseGateTable(const OrtValue* const* inputs, int64_t required, CellArgs* args) const {
  if (inputs[kGateTable] == nullptr) return;
  if (!gate_table_is_constant_) CheckGateTable(inputs[kGateTable], required);
  args->gate_table = ort::DataOf<const float>(api_, inputs[kGateTable]);
}

void CellInputs::CheckGateTable(const OrtValue* table, int64_t required) const {
  const Shape shape = ort::ShapeOf(api_, table);
  CheckShape(kGateTable, shape, {-1});
  if (shape[0] >= required) return;
  throw std::invalid_argument("input gate_table has shape " + ort::ToText(shape) + ", expected at least " +
                              std::to_string(required) + " entries for gate_table_offset, " +
                              (config_.is_grid() ? "grid_min and grid_max" : "gate_max and gate_index_size"));
}

void CellInputs::FailWithoutGateTable() const {
  throw std::invalid_argument(std::string("input gate_table is missing, but ") +
                              (config_.is_grid() ? "arithmetic \"grid\" needs" : "a kind in gate_kinds uses") + " it");
}

int64_t CellInputs::CheckedInputSize(const OrtValue* const* inputs, const Sizes& sizes) const {
  const Shape shape = CheckedShape(kW, inputs[kW], sizes);
  const int64_t largest = MaxInputSize(config_);
  if (shape[0] >= 1 && shape[0] <= largest) return shape[0];
  throw std::invalid_argument("input W has shape " + ort::ToText(shape) + ", expected an input size of 1 .. " +
                              std::to_string(largest) + " for this x_mode");
}

CellInputs::Weights CellInputs::UnpackedWeights(size_t input, const OrtValue* const* inputs, const Sizes& sizes) const {
  const bool is_w = input == kW;
  Weights weights{};
  WeightMatrix& matrix = weights.matrix;
  matrix.k = is_w ? sizes.input : sizes.hidden;
  matrix.units = sizes.hidden;
  matrix.gates = op_.gates;
  matrix.group_size = is_w ? sizes.w_group_size : sizes.r_group_size;
  matrix.zero_point = CheckedData<int32_t>(is_w ? kWZeroPoint : kRZeroPoint, inputs, sizes);
  if (is_w ? sizes.wide_w : sizes.wide_r) {
    matrix.wide = CheckedData<int16_t>(input, inputs, sizes);
  } else if (is_w ? sizes.packed_w : sizes.packed_r) {
    const uint8_t* packed = CheckedData<uint8_t>(input, inputs, sizes);
    const uint8_t* multipliers = CheckedData<uint8_t>(is_w ? kWGroupMultiplier : kRGroupMultiplier, inputs, sizes);
    const int64_t codebook = is_w ? config_.w_codebook : config_.r_codebook;
    const int64_t wide_columns = is_w ? config_.w_wide_columns : config_.r_wide_columns;
    try {
      weights.codes = UnpackWeights(packed, is_w ? sizes.w_bits : sizes.r_bits, matrix.k, matrix.columns(), multipliers,
                                    matrix.group_size, codebook, wide_columns);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument("input " + std::string(op_.input_name(input)) + ": " + error.what());
    }
    matrix.weights = weights.codes.data();
    matrix.multipliers = multipliers;
    matrix.sets = codebook == kUneven;
  } else {
    matrix.weights = CheckedData<int8_t>(input, inputs, sizes);
  }
  return weights;
}

CellParameters CellInputs::Vectors(const OrtValue* const* inputs, const Sizes& sizes) const {
  CellParameters parameters{};
  parameters.x_multiplier = CheckedData<float>(kXMultiplier, inputs, sizes);
  parameters.h_multiplier = CheckedData<float>(kHMultiplier, inputs, sizes);
  parameters.bias = CheckedData<float>(kBias, inputs, sizes);
  parameters.peephole = CheckedData<float>(kPeephole, inputs, sizes);
  if (op_.gates == 3) parameters.hidden_bias = CheckedData<float>(kHiddenBias, inputs, sizes);
  return parameters;
}

template <typename T>
T* CellInputs::OutputData(OrtKernelContext* context, size_t index, const int64_t* shape, size_t rank) const {
  if (!has_output_[index]) return nullptr;
  OrtValue* value = nullptr;
  ort::Check(api_, api_.KernelContext_GetOutput()(context, index, shape, rank, &value));
  return value == nullptr ? nullptr : ort::DataOf<T>(api_, value);
}

float* CellInputs::StateOutput(OrtKernelContext* context, size_t output, const Sizes& s) const {
  const int64_t state[] = {1, s.batch, s.hidden};
  const size_t skipped = config_.state_direction_axis ? 0 : 1;
  return OutputData<float>(context, output, state + skipped, 3 - skipped);
}

void CellInputs::UseOutputs(OrtKernelContext* context, const Sizes& s, CellArgs* args) const {
  const int64_t sequence[] = {s.time, 1, s.batch, s.hidden};
  const int64_t codes[] = {s.time, s.batch, s.hidden};
  args->y =
      config_.y_direction_axis ? OutputData<float>(context, 0, sequence, 4) : OutputData<float>(context, 0, codes, 3);
  args->y_h = StateOutput(context, 1, s);
  if (op_.codes_output() > 2) args->y_c = StateOutput(context, 2, s);
  args->y_codes = OutputData<uint8_t>(context, op_.codes_output(), codes, 3);
}

}  // namespace rnnqc
