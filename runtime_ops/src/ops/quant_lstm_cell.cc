#include "ops/quant_lstm_cell.h"

#include <memory>
#include <string>
#include <vector>

#include "cells/grid_byte_form.h"
#include "cells/grid_cell.h"
#include "cells/lstm_cell.h"
#include "cells/packed_int4.h"
#include "kernels/dispatch.h"
#include "ops/quant_lstm_attributes.h"
#include "ort_support.h"

namespace rnnqc {
namespace {

using ort::OrtApi;
using ort::OrtKernelContext;
using ort::OrtValue;
using ort::Shape;

enum Input : size_t {
  kX,
  kW,
  kR,
  kXMultiplier,
  kHMultiplier,
  kBias,
  kGateTable,
  kCellTable,
  kSequenceLens,
  kInitialH,
  kInitialC,
  kPeephole,
  kWZeroPoint,
  kRZeroPoint,
  kWGroupMultiplier,
  kRGroupMultiplier,
  kUsedInputs,
  kInputCount = 20,
};
enum Output : size_t { kY, kYh, kYc, kYCodes, kOutputCount };

const char* const kInputNames[kInputCount] = {"X",
                                              "W",
                                              "R",
                                              "x_multiplier",
                                              "h_multiplier",
                                              "B",
                                              "gate_table",
                                              "cell_table",
                                              "sequence_lens",
                                              "initial_h",
                                              "initial_c",
                                              "P",
                                              "W_zero_point",
                                              "R_zero_point",
                                              "W_group_multiplier",
                                              "R_group_multiplier",
                                              "(reserved)",
                                              "(reserved)",
                                              "(reserved)",
                                              "(reserved)"};

constexpr bool IsZeroPoint(size_t input) { return input == kWZeroPoint || input == kRZeroPoint; }

// What becomes part of PackedLstm or PackedGrid.
constexpr bool IsPacked(size_t input) {
  return (input >= kW && input <= kBias) || input == kPeephole || IsZeroPoint(input) || input == kWGroupMultiplier ||
         input == kRGroupMultiplier;
}

constexpr int64_t kMaxCellTableSize = 1 << 23;  // indices are formed in float

class ContextParallel : public Parallel {
 public:
  ContextParallel(const OrtApi& api, OrtKernelContext* context) : api_(api), context_(context) {}
  void For(int64_t count, void (*task)(void* user, size_t index), void* user) override {
    ort::Check(api_, api_.KernelContext_ParallelFor()(context_, task, static_cast<size_t>(count), 0, user));
  }

 private:
  const OrtApi& api_;
  OrtKernelContext* context_;
};

// Sizes that the shapes of the inputs have in common; negative if not known.
struct Sizes {
  int64_t time = -1;
  int64_t batch = -1;
  int64_t input = -1;
  int64_t hidden = -1;
  bool state_axis = false;
  bool packed_w = false;
  bool packed_r = false;
  bool wide_w = false;  // int16
  bool wide_r = false;
  int64_t w_group_size = 0;
  int64_t r_group_size = 0;
};

// Groups of rows that share a multiplier; negative if not known or if there are none.
int64_t Groups(int64_t rows, int64_t group_size) {
  return rows < 0 || group_size == 0 ? -1 : GroupCount(rows, group_size);
}

Shape ExpectedShape(size_t input, const Sizes& s) {
  switch (input) {
    case kX:
      return {s.time, s.batch, s.input};
    case kW:
      return {s.input, (s.packed_w ? kGates / 2 : kGates) * s.hidden};
    case kR:
      return {s.hidden, (s.packed_r ? kGates / 2 : kGates) * s.hidden};
    case kWGroupMultiplier:
      return {Groups(s.input, s.w_group_size), kGates * s.hidden};
    case kRGroupMultiplier:
      return {Groups(s.hidden, s.r_group_size), kGates * s.hidden};
    case kXMultiplier:
    case kHMultiplier:
    case kBias:
    case kWZeroPoint:
    case kRZeroPoint:
      return {kGates * s.hidden};
    case kSequenceLens:
      return {s.batch};
    case kInitialH:
    case kInitialC:
      return s.state_axis ? Shape{1, s.batch, s.hidden} : Shape{s.batch, s.hidden};
    case kPeephole:
      return {3 * s.hidden};
    default:
      return {-1};
  }
}

const char* ShapeInWords(size_t input, const Sizes& s) {
  if (input == kW && s.packed_w) return "[I, 2H]";
  if (input == kR && s.packed_r) return "[H, 2H]";
  if ((input == kInitialH || input == kInitialC) && s.state_axis) return "[1, B, H]";
  static const char* const words[] = {"[T, B, I]", "[I, 4H]", "[H, 4H]", "[4H]", "[4H]", "[4H]", "[N]",     "[M]",
                                      "[B]",       "[B, H]",  "[B, H]",  "[3H]", "[4H]", "[4H]", "[G, 4H]", "[G, 4H]"};
  return words[input];
}

void CheckShape(size_t input, const Shape& found, const Shape& expected, const Sizes& sizes = Sizes()) {
  bool fits = found.size() == expected.size();
  for (size_t i = 0; fits && i < found.size(); ++i) {
    fits = found[i] < 0 || expected[i] < 0 || found[i] == expected[i];
  }
  if (fits) return;
  throw std::invalid_argument("input " + std::string(kInputNames[input]) + " has shape " + ort::ToText(found) +
                              ", expected " + ShapeInWords(input, sizes) + " = " + ort::ToText(expected));
}

class QuantLstmCellKernel {
 public:
  QuantLstmCellKernel(const OrtApi& api, const ort::KernelInfo& info, std::string context)
      : api_(api), context_(std::move(context)), config_(ReadLstmConfig(info)), kernels_(SelectedTable()) {
    CheckInputs(info);
    CheckOutputs(info);
    CheckConstants(info);
  }

  const OrtApi& api() const { return api_; }
  const std::string& context() const { return context_; }

  void Compute(OrtKernelContext* context) {
    const OrtValue* inputs[kInputCount] = {};
    for (size_t i = 0; i < needed_count_; ++i) {
      const size_t input = needed_[i];
      ort::Check(api_, api_.KernelContext_GetInput()(context, input, &inputs[input]));
    }
    Sizes sizes = sizes_;
    sizes.input = weights_.input_size();
    const Shape x_shape = CheckedShape(kX, inputs[kX], sizes);
    sizes.time = x_shape[0];
    sizes.batch = x_shape[1];
    sizes.input = x_shape[2];
    CheckSizes(sizes);

    LstmArgs args{};
    args.time = sizes.time;
    args.batch = sizes.batch;
    if (config_.x_mode == CodeMode::kCodes) {
      args.x_codes = ort::DataOf<const uint8_t>(api_, inputs[kX]);
    } else {
      args.x_float = ort::DataOf<const float>(api_, inputs[kX]);
    }
    args.sequence_lens = CheckedData<int32_t>(kSequenceLens, inputs, sizes);
    CheckLengths(args.sequence_lens, sizes);
    args.initial_h = CheckedData<float>(kInitialH, inputs, sizes);
    args.initial_c = CheckedData<float>(kInitialC, inputs, sizes);
    UseTables(inputs, &args);
    UseOutputs(context, sizes, &args);

    const PackedWeights weights_now = weights_.empty() ? Pack(inputs, sizes) : PackedWeights();
    const PackedWeights& weights = weights_.empty() ? weights_now : weights_;
    const ScratchPool::Lease scratch(&scratch_pool_);
    ContextParallel parallel(api_, context);
    if (weights.grid != nullptr) {
      RunGrid(config_, kernels_, *weights.grid, args, scratch.get(), &parallel);
    } else if (weights.grid32 != nullptr) {
      RunGrid(config_, kernels_, *weights.grid32, args, scratch.get(), &parallel);
    } else {
      args.bytes = weights.bytes.get();
      RunLstm(config_, kernels_, *weights.tables, args, scratch.get(), &parallel);
    }
  }

 private:
  // What the weights became in one of the arithmetics.
  struct PackedWeights {
    std::unique_ptr<PackedLstm> tables;
    std::unique_ptr<GridBytes> bytes;  // with `tables`
    std::unique_ptr<PackedGrid<double>> grid;
    std::unique_ptr<PackedGrid<float>> grid32;

    bool empty() const { return tables == nullptr && grid == nullptr && grid32 == nullptr; }
    int64_t input_size() const {
      if (tables != nullptr) return tables->w.k;
      if (grid != nullptr) return grid->w.planes[0].k;
      return grid32 != nullptr ? grid32->w.planes[0].k : -1;
    }
  };

  bool IsGrid() const { return config_.is_grid(); }

  bool IsReserved(size_t input) const { return input >= kUsedInputs || (IsZeroPoint(input) && !IsGrid()); }

  void CheckInputs(const ort::KernelInfo& info) {
    sizes_.hidden = config_.hidden_size;
    sizes_.state_axis = config_.state_direction_axis;
    sizes_.w_group_size = config_.w_group_size;
    sizes_.r_group_size = config_.r_group_size;
    Sizes sizes = sizes_;
    for (size_t i = 0; i < kInputCount; ++i) {
      ort::TensorType type;
      present_[i] = info.InputType(i, &type);
      if (!present_[i]) {
        if (i < kGateTable) throw std::invalid_argument("input " + std::string(kInputNames[i]) + " is missing");
        continue;
      }
      if (IsReserved(i)) {
        throw std::invalid_argument("input " + std::to_string(i) + " " + kInputNames[i] +
                                    " is reserved for later versions. Use a newer rnnqc library.");
      }
      const ort::ElementType expected = ExpectedType(i);
      if (i == kW) sizes.packed_w = sizes_.packed_w = type.element == ort::kUint8;
      if (i == kR) sizes.packed_r = sizes_.packed_r = type.element == ort::kUint8;
      const bool packed = (i == kW || i == kR) && type.element == ort::kUint8;
      const bool wide = (i == kW || i == kR) && type.element == ort::kInt16 && IsGrid();
      if (i == kW) sizes.wide_w = sizes_.wide_w = wide;
      if (i == kR) sizes.wide_r = sizes_.wide_r = wide;
      if (type.element != expected && !packed && !wide) {
        throw std::invalid_argument(
            "input " + std::string(kInputNames[i]) + " has element type " + ort::ToText(type.element) + ", expected " +
            ort::ToText(expected) +
            (i == kW || i == kR ? IsGrid() ? ", int16 or uint8 (packed int4)" : " or uint8 (packed int4)" : "") +
            (i == kX ? " for this x_mode" : "") + ". Other types may need a newer rnnqc library.");
      }
      if (type.ranked) CheckShape(i, type.shape, ExpectedShape(i, sizes), sizes);
      if (i == kX && type.ranked) sizes.input = type.shape[2];
    }
    CheckGroups("W", sizes.packed_w, "w_group_size", config_.w_group_size, present_[kWGroupMultiplier]);
    CheckGroups("R", sizes.packed_r, "r_group_size", config_.r_group_size, present_[kRGroupMultiplier]);
    if (RequiredGateTableSize(config_) > 0 && !present_[kGateTable]) {
      throw std::invalid_argument(std::string("input gate_table is missing, but ") +
                                  std::string(IsGrid() ? "arithmetic \"grid\" needs" : "a kind in gate_kinds uses") +
                                  " it");
    }
    if (RequiredCellTableSize(config_) > 0 && !present_[kCellTable]) {
      throw std::invalid_argument("input cell_table is missing, but output_kind uses it");
    }
  }

  static void CheckGroups(const std::string& matrix, bool packed, const char* attribute, int64_t group_size,
                          bool multipliers) {
    if (multipliers != (group_size > 0)) {
      throw std::invalid_argument("input " + matrix + "_group_multiplier is " + (multipliers ? "present" : "missing") +
                                  ", but attribute " + attribute + " is " + std::to_string(group_size) +
                                  "; expected both or neither");
    }
    if (multipliers && !packed) {
      throw std::invalid_argument("input " + matrix + "_group_multiplier is present, but " + matrix +
                                  " is int8; expected packed int4 (uint8)");
    }
  }

  ort::ElementType ExpectedType(size_t input) const {
    if (input == kX) return config_.x_mode == CodeMode::kCodes ? ort::kUint8 : ort::kFloat;
    if (input == kW || input == kR) return ort::kInt8;
    if (input == kWGroupMultiplier || input == kRGroupMultiplier) return ort::kUint8;
    return input == kSequenceLens || IsZeroPoint(input) ? ort::kInt32 : ort::kFloat;
  }

  void CheckOutputs(const ort::KernelInfo& info) {
    for (size_t i = 0; i < kOutputCount; ++i) has_output_[i] = info.HasOutput(i);
    if (has_output_[kYCodes] && config_.h_mode != CodeMode::kStatic) {
      throw std::invalid_argument("output Y_codes exists for h_mode \"static\" only, but h_mode is \"dynamic_row\"");
    }
    if (has_output_[kYCodes] && config_.h_bits != 8) {
      throw std::invalid_argument("output Y_codes exists for h_bits 8 only, but h_bits is " +
                                  std::to_string(config_.h_bits));
    }
  }

  // Packs the weights if all of them are constant, and checks constant tables.
  void CheckConstants(const ort::KernelInfo& info) {
    // onnxruntime may move these values after the kernel's creation: they are not kept.
    const OrtValue* inputs[kInputCount] = {};
    for (size_t i = 0; i < kUsedInputs; ++i) {
      if (present_[i]) inputs[i] = info.ConstantInput(i);
    }
    if (inputs[kGateTable] != nullptr) {
      gate_table_is_checked_ = true;
      CheckGateTable(inputs[kGateTable]);
    }
    if (inputs[kCellTable] != nullptr) constant_cell_table_size_ = CheckedCellTableSize(inputs[kCellTable]);
    FindLinearForm(inputs);
    bool constant = true;
    for (size_t i = 0; i < kUsedInputs; ++i) {
      constant = constant && !(IsPacked(i) && present_[i] && inputs[i] == nullptr);
    }
    if (constant) weights_ = Pack(inputs, sizes_);
    for (size_t i = 0; i < kUsedInputs; ++i) {
      if (present_[i] && !(constant && IsPacked(i))) needed_[needed_count_++] = i;
    }
  }

  void FindLinearForm(const OrtValue* const* inputs) {
    if (IsGrid() || inputs[kGateTable] == nullptr || inputs[kCellTable] == nullptr) return;
    auto linear = std::make_unique<LinearTables>();
    const float* gate_table = ort::DataOf<const float>(api_, inputs[kGateTable]);
    const float* cell_table = ort::DataOf<const float>(api_, inputs[kCellTable]);
    if (FindLinearTables(config_, gate_table, cell_table, constant_cell_table_size_, linear.get())) {
      linear_ = std::move(linear);
    }
  }

  Shape CheckedShape(size_t input, const OrtValue* value, const Sizes& sizes) const {
    Shape shape = ort::ShapeOf(api_, value);
    CheckShape(input, shape, ExpectedShape(input, sizes), sizes);
    return shape;
  }

  // Data of an input after a check of its shape, or null if it is absent.
  template <typename T>
  const T* CheckedData(size_t input, const OrtValue* const* inputs, const Sizes& sizes) const {
    if (inputs[input] == nullptr) return nullptr;
    CheckedShape(input, inputs[input], sizes);
    return ort::DataOf<const T>(api_, inputs[input]);
  }

  // A weight matrix, with the memory of its codes if they have to be unpacked.
  struct Weights {
    Matrix matrix;
    std::vector<int8_t> codes;
  };

  // What the arithmetic "grid" multiplies, with the memory behind it; no `Weights` for 16-bit codes.
  struct GridOperands {
    GridParameters parameters;
    Weights w;
    Weights r;
  };

  Weights UnpackedWeights(size_t input, const OrtValue* const* inputs, const Sizes& sizes) const {
    const bool is_w = input == kW;
    const size_t multipliers = is_w ? kWGroupMultiplier : kRGroupMultiplier;
    Weights weights{};
    weights.matrix.k = is_w ? sizes.input : sizes.hidden;
    weights.matrix.units = sizes.hidden;
    weights.matrix.group_size = is_w ? sizes.w_group_size : sizes.r_group_size;
    if (is_w ? sizes.packed_w : sizes.packed_r) {
      const uint8_t* packed = CheckedData<uint8_t>(input, inputs, sizes);
      weights.matrix.multipliers = CheckedData<uint8_t>(multipliers, inputs, sizes);
      try {
        weights.codes = UnpackInt4(packed, weights.matrix.k, weights.matrix.units, weights.matrix.multipliers,
                                   weights.matrix.group_size);
      } catch (const std::invalid_argument& error) {
        throw std::invalid_argument("input " + std::string(kInputNames[input]) + ": " + error.what());
      }
      weights.matrix.weights = weights.codes.data();
    } else {
      weights.matrix.weights = CheckedData<int8_t>(input, inputs, sizes);
    }
    return weights;
  }

  PackedWeights Pack(const OrtValue* const* inputs, Sizes sizes) const {
    sizes.input = CheckedShape(kW, inputs[kW], sizes)[0];
    const int64_t largest = MaxInputSize(config_);
    if (sizes.input < 1 || sizes.input > largest) {
      throw std::invalid_argument("input W has shape " + ort::ToText(ort::ShapeOf(api_, inputs[kW])) +
                                  ", expected an input size of 1 .. " + std::to_string(largest) + " for this x_mode");
    }
    PackedWeights packed;
    if (!IsGrid()) {
      packed.tables = std::make_unique<PackedLstm>(PackForTables(inputs, sizes));
      return packed;
    }
    const GridOperands operands = ReadGridOperands(inputs, sizes);
    if (config_.arithmetic == Arithmetic::kGrid) {
      packed.grid = std::make_unique<PackedGrid<double>>(PackGrid<double>(config_, kernels_, operands.parameters));
    } else if (!PackBytes(inputs, operands, &packed)) {
      packed.grid32 = std::make_unique<PackedGrid<float>>(PackGrid<float>(config_, kernels_, operands.parameters));
    }
    return packed;
  }

  // Only for constant tables: to find the form takes long.
  bool PackBytes(const OrtValue* const* inputs, const GridOperands& operands, PackedWeights* packed) const {
    if (!gate_table_is_checked_ || constant_cell_table_size_ == 0) return false;
    auto bytes = std::make_unique<GridBytes>();
    const float* gate_table = ort::DataOf<const float>(api_, inputs[kGateTable]);
    const float* cell_table = ort::DataOf<const float>(api_, inputs[kCellTable]);
    const GridParameters& from = operands.parameters;
    if (!FindGridBytes(config_, kernels_, from, gate_table, cell_table, bytes.get())) return false;
    const LstmParameters parameters{operands.w.matrix, operands.r.matrix, from.x_multiplier,
                                    from.h_multiplier, from.bias,         nullptr};
    packed->tables = std::make_unique<PackedLstm>(PackLstm(config_, kernels_, parameters));
    packed->bytes = std::move(bytes);
    return true;
  }

  PackedLstm PackForTables(const OrtValue* const* inputs, const Sizes& sizes) const {
    const Weights w = UnpackedWeights(kW, inputs, sizes);
    const Weights r = UnpackedWeights(kR, inputs, sizes);
    LstmParameters parameters{};
    parameters.w = w.matrix;
    parameters.r = r.matrix;
    ReadVectors(inputs, sizes, &parameters);
    return PackLstm(config_, kernels_, parameters);
  }

  GridOperands ReadGridOperands(const OrtValue* const* inputs, const Sizes& sizes) const {
    GridOperands operands{};
    GridParameters& parameters = operands.parameters;
    for (const size_t input : {size_t{kW}, size_t{kR}}) {
      const bool is_w = input == kW;
      GridMatrix& matrix = is_w ? parameters.w : parameters.r;
      matrix.k = is_w ? sizes.input : sizes.hidden;
      matrix.zero_point = CheckedData<int32_t>(is_w ? kWZeroPoint : kRZeroPoint, inputs, sizes);
      if (is_w ? sizes.wide_w : sizes.wide_r) {
        matrix.wide = CheckedData<int16_t>(input, inputs, sizes);
      } else {
        Weights& weights = is_w ? operands.w : operands.r;
        weights = UnpackedWeights(input, inputs, sizes);
        matrix.narrow = weights.matrix.weights;
      }
    }
    ReadVectors(inputs, sizes, &parameters);
    return operands;
  }

  template <typename Parameters>
  void ReadVectors(const OrtValue* const* inputs, const Sizes& sizes, Parameters* parameters) const {
    parameters->x_multiplier = CheckedData<float>(kXMultiplier, inputs, sizes);
    parameters->h_multiplier = CheckedData<float>(kHMultiplier, inputs, sizes);
    parameters->bias = CheckedData<float>(kBias, inputs, sizes);
    parameters->peephole = CheckedData<float>(kPeephole, inputs, sizes);
  }

  void CheckGateTable(const OrtValue* table) const {
    const Shape shape = ort::ShapeOf(api_, table);
    CheckShape(kGateTable, shape, {-1});
    const int64_t required = RequiredGateTableSize(config_);
    if (shape[0] < required) {
      throw std::invalid_argument("input gate_table has shape " + ort::ToText(shape) + ", expected at least " +
                                  std::to_string(required) + " entries for gate_table_offset, " +
                                  (IsGrid() ? "grid_min and grid_max" : "gate_max and gate_index_size"));
    }
  }

  int64_t CheckedCellTableSize(const OrtValue* table) const {
    const Shape shape = ort::ShapeOf(api_, table);
    CheckShape(kCellTable, shape, {-1});
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
    if (inputs[kGateTable] != nullptr) {
      if (!gate_table_is_checked_) CheckGateTable(inputs[kGateTable]);
      args->gate_table = ort::DataOf<const float>(api_, inputs[kGateTable]);
    }
    if (inputs[kCellTable] != nullptr) {
      args->cell_table_size =
          constant_cell_table_size_ > 0 ? constant_cell_table_size_ : CheckedCellTableSize(inputs[kCellTable]);
      args->cell_table = ort::DataOf<const float>(api_, inputs[kCellTable]);
    }
    args->linear = linear_.get();
  }

  static void CheckSizes(const Sizes& sizes) {
    if (sizes.time > 0 && sizes.batch > 0) return;
    throw std::invalid_argument("input X has shape " + ort::ToText({sizes.time, sizes.batch, sizes.input}) +
                                ", expected [T, B, I] with T >= 1 and B >= 1: empty sequences and batches are not "
                                "supported");
  }

  static void CheckLengths(const int32_t* lens, const Sizes& sizes) {
    for (int64_t b = 0; lens != nullptr && b < sizes.batch; ++b) {
      if (lens[b] >= 0 && lens[b] <= sizes.time) continue;
      throw std::invalid_argument("input sequence_lens[" + std::to_string(b) + "] is " + std::to_string(lens[b]) +
                                  ", expected 0 .. T = " + std::to_string(sizes.time));
    }
  }

  template <typename T>
  T* OutputData(OrtKernelContext* context, size_t index, const int64_t* shape, size_t rank) const {
    if (!has_output_[index]) return nullptr;
    OrtValue* value = nullptr;
    ort::Check(api_, api_.KernelContext_GetOutput()(context, index, shape, rank, &value));
    return value == nullptr ? nullptr : ort::DataOf<T>(api_, value);
  }

  void UseOutputs(OrtKernelContext* context, const Sizes& s, LstmArgs* args) const {
    const int64_t sequence[] = {s.time, 1, s.batch, s.hidden};
    const int64_t state[] = {1, s.batch, s.hidden};
    const int64_t codes[] = {s.time, s.batch, s.hidden};
    const size_t skipped = config_.state_direction_axis ? 0 : 1;
    args->y = config_.y_direction_axis ? OutputData<float>(context, kY, sequence, 4)
                                       : OutputData<float>(context, kY, codes, 3);
    args->y_h = OutputData<float>(context, kYh, state + skipped, 3 - skipped);
    args->y_c = OutputData<float>(context, kYc, state + skipped, 3 - skipped);
    args->y_codes = OutputData<uint8_t>(context, kYCodes, codes, 3);
  }

  const OrtApi& api_;
  const std::string context_;
  const LstmConfig config_;
  const KernelTable& kernels_;
  Sizes sizes_;  // those that do not change
  bool present_[kInputCount] = {};
  size_t needed_[kInputCount] = {};  // the first needed_count_ are what Compute reads
  size_t needed_count_ = 0;
  bool has_output_[kOutputCount] = {};
  bool gate_table_is_checked_ = false;
  int64_t constant_cell_table_size_ = 0;
  std::unique_ptr<LinearTables> linear_;  // null if the tables are not constant or have no such form
  PackedWeights weights_;                 // empty if the weights are not constant
  ScratchPool scratch_pool_;
};

struct Op : ort::OrtCustomOp {
  const OrtApi* api;
};

ort::OrtStatus* CreateKernel(const ort::OrtCustomOp*, const OrtApi* api, const ort::OrtKernelInfo* raw, void** kernel) {
  const ort::KernelInfo info(*api, raw);
  std::string context;
  ort::OrtStatus* status = ort::Guard(*api, "QuantLSTMCell: ", [&] {
    const std::string name = info.NodeName();
    context = "QuantLSTMCell node \"" + name + "\": ";
  });
  if (status != nullptr) return status;
  return ort::Guard(*api, context, [&] { *kernel = new QuantLstmCellKernel(*api, info, context); });
}

ort::OrtStatus* ComputeKernel(void* raw, OrtKernelContext* context) {
  auto* kernel = static_cast<QuantLstmCellKernel*>(raw);
  return ort::Guard(kernel->api(), kernel->context(), [&] { kernel->Compute(context); });
}

// An output's shape, made of some dimensions of X and the hidden size.
class OutputShape {
 public:
  explicit OutputShape(const OrtApi& api) : api_(api) { ort::Check(api_, api_.CreateTensorTypeAndShapeInfo()(&info_)); }
  ~OutputShape() { api_.ReleaseTensorTypeAndShapeInfo()(info_); }
  OutputShape(const OutputShape&) = delete;
  OutputShape& operator=(const OutputShape&) = delete;

  void Set(const ort::OrtShapeInferContext* context, size_t index, Shape shape, std::vector<const char*> symbols) {
    ort::Check(api_, api_.SetTensorElementType()(info_, index == kYCodes ? ort::kUint8 : ort::kFloat));
    ort::Check(api_, api_.SetDimensions()(info_, shape.data(), shape.size()));
    ort::Check(api_, api_.SetSymbolicDimensions()(info_, symbols.data(), symbols.size()));
    // An error means that the node does not have this output.
    ort::Ok(api_, api_.ShapeInferContext_SetOutputTypeShape()(context, index, info_));
  }

 private:
  const OrtApi& api_;
  ort::OrtTensorTypeAndShapeInfo* info_ = nullptr;
};

bool IsSet(const OrtApi& api, const ort::OrtShapeInferContext* context, const char* name) {
  const ort::OrtOpAttr* attribute = nullptr;
  int64_t value = 0;
  size_t size = 0;
  return ort::Ok(api, api.ShapeInferContext_GetAttribute()(context, name, &attribute)) &&
         ort::Ok(api, api.ReadOpAttr()(attribute, ort::kAttributeInt, &value, sizeof(value), &size)) && value != 0;
}

// Leaves the outputs without a shape where X's is not known well enough: a dimension that is neither a number nor a
// name cannot be expressed.
ort::OrtStatus* InferShapes(const ort::OrtCustomOp* raw, ort::OrtShapeInferContext* context) {
  const OrtApi& api = *static_cast<const Op*>(raw)->api;
  return ort::Guard(api, "QuantLSTMCell, shape inference: ", [&] {
    ort::OrtTensorTypeAndShapeInfo* x = nullptr;
    const ort::OrtOpAttr* attribute = nullptr;
    int64_t hidden = 0;
    size_t rank = 0;
    size_t size = 0;
    if (!ort::Ok(api, api.ShapeInferContext_GetInputTypeShape()(context, kX, &x)) ||
        !ort::Ok(api, api.ShapeInferContext_GetAttribute()(context, "hidden_size", &attribute)) ||
        !ort::Ok(api, api.ReadOpAttr()(attribute, ort::kAttributeInt, &hidden, sizeof(hidden), &size)) ||
        !ort::Ok(api, api.GetDimensionsCount()(x, &rank)) || rank != 3) {
      return;
    }
    Shape dims(rank);
    std::vector<const char*> symbols(rank);
    ort::Check(api, api.GetDimensions()(x, dims.data(), rank));
    ort::Check(api, api.GetSymbolicDimensions()(x, symbols.data(), rank));
    const auto known = [&](size_t i) { return dims[i] >= 0 || symbols[i][0] != '\0'; };
    if (!known(1)) return;
    OutputShape shape(api);
    for (const size_t index : {size_t{kYh}, size_t{kYc}}) {
      if (IsSet(api, context, "state_direction_axis")) {
        shape.Set(context, index, {1, dims[1], hidden}, {"", symbols[1], ""});
      } else {
        shape.Set(context, index, {dims[1], hidden}, {symbols[1], ""});
      }
    }
    if (!known(0)) return;
    shape.Set(context, kYCodes, {dims[0], dims[1], hidden}, {symbols[0], symbols[1], ""});
    if (IsSet(api, context, "y_direction_axis")) {
      shape.Set(context, kY, {dims[0], 1, dims[1], hidden}, {symbols[0], "", symbols[1], ""});
    } else {
      shape.Set(context, kY, {dims[0], dims[1], hidden}, {symbols[0], symbols[1], ""});
    }
  });
}

Op MakeOp(const OrtApi* api, bool infers_shapes) {
  Op op{};
  op.version = ort::kApiVersion;
  op.api = api;
  op.GetName = [](const ort::OrtCustomOp*) { return "QuantLSTMCell"; };
  op.GetExecutionProviderType = [](const ort::OrtCustomOp*) -> const char* { return nullptr; };
  op.GetInputTypeCount = [](const ort::OrtCustomOp*) { return size_t{kInputCount}; };
  op.GetInputType = [](const ort::OrtCustomOp*, size_t) { return ort::kUndefined; };
  op.GetOutputTypeCount = [](const ort::OrtCustomOp*) { return size_t{kOutputCount}; };
  op.GetOutputType = [](const ort::OrtCustomOp*, size_t index) { return index == kYCodes ? ort::kUint8 : ort::kFloat; };
  op.GetInputCharacteristic = [](const ort::OrtCustomOp*, size_t index) {
    return index < kGateTable ? ort::kRequired : ort::kOptional;
  };
  op.GetOutputCharacteristic = [](const ort::OrtCustomOp*, size_t) { return ort::kOptional; };
  op.GetInputMemoryType = [](const ort::OrtCustomOp*, size_t) { return ort::kMemoryDefault; };
  op.GetVariadicInputMinArity = [](const ort::OrtCustomOp*) { return 1; };
  op.GetVariadicInputHomogeneity = [](const ort::OrtCustomOp*) { return 0; };
  op.GetVariadicOutputMinArity = [](const ort::OrtCustomOp*) { return 1; };
  op.GetVariadicOutputHomogeneity = [](const ort::OrtCustomOp*) { return 0; };
  op.CreateKernelV2 = CreateKernel;
  op.KernelComputeV2 = ComputeKernel;
  op.KernelDestroy = [](void* kernel) { delete static_cast<QuantLstmCellKernel*>(kernel); };
  op.InferOutputShapeFn = infers_shapes ? InferShapes : nullptr;
  op.GetStartVersion = [](const ort::OrtCustomOp*) { return 1; };
  op.GetEndVersion = [](const ort::OrtCustomOp*) { return 1; };
  return op;
}

}  // namespace

const ort::OrtCustomOp* QuantLstmCellOp(const OrtApi* api, bool infers_shapes) {
  static const Op op = MakeOp(api, infers_shapes);
  return &op;
}

}  // namespace rnnqc
