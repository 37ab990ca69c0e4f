#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "cells/driver/row_format.h"
#include "cells/driver/scratch.h"
#include "kernels/dispatch.h"
#include "linear/linear_layer.h"
#include "ops/cell_attributes.h"
#include "ops/operators.h"
#include "ops/packed_weights.h"

namespace rnnqc {
namespace {

using ort::OrtApi;
using ort::OrtValue;
using ort::Shape;

// In the order of the operator's inputs; those from kUsed on are reserved.
enum LinearInput : size_t { kLinearX, kLinearW, kMultiplier, kLinearB, kGroupMultiplier, kUsed };
constexpr const char* kNames[kUsed] = {"X", "W", "multiplier", "B", "W_group_multiplier"};
constexpr const char* kShapes[kUsed] = {"[.., K]", "", "[N]", "[N] or [1]", "[G, N]"};

ort::ElementType OnlyLinearType(size_t input) {
  if (input == kMultiplier || input == kLinearB) return ort::kFloat;
  return input == kGroupMultiplier ? ort::kUint8 : ort::kUndefined;
}

[[noreturn]] void FailShape(size_t input, const Shape& found, const Shape& expected, const std::string& words) {
  throw std::invalid_argument("input " + std::string(kNames[input]) + " has shape " + ort::ToText(found) +
                              ", expected " + words + " = " + ort::ToText(expected));
}

LinearConfig ReadLinearConfig(const ort::KernelInfo& info) {
  LinearConfig config;
  ReadInputMode(info, &config.x_mode);
  info.Read("x_scale", &config.x_scale);
  info.Read("x_zero_point", &config.x_zero_point);
  info.Read("group_size", &config.group_size);
  info.Read("bits", &config.bits);
  CheckScale("x_scale", config.x_scale, config.x_mode == CodeMode::kStatic);
  if (config.x_mode != CodeMode::kDynamicRow) CheckZeroPoint("x_zero_point", config.x_zero_point, 8);
  CheckGroupSize("group_size", config.group_size);
  CheckPackedBits("bits", config.bits);
  info.Read("codebook", &config.codebook);
  CheckCodebook("codebook", config.codebook, config.bits, config.group_size);
  return config;
}

// A node. An invalid one throws std::invalid_argument, which names the input and what is expected.
class QuantLinearKernel {
 public:
  QuantLinearKernel(const OrtApi& api, const ort::KernelInfo& info, std::string context)
      : api_(api), context_(std::move(context)), config_(ReadLinearConfig(info)), kernels_(SelectedTable()) {
    for (size_t i = 0; i < info.InputCount(); ++i) {
      ort::TensorType type;
      if (info.InputType(i, &type)) CheckInput(i, type);
    }
    for (size_t i = 0; i < kGroupMultiplier; ++i) {
      if (!present_[i]) throw std::invalid_argument("input " + std::string(kNames[i]) + " is missing");
    }
    CheckGroups();
    const OrtValue* inputs[kUsed] = {};
    bool constant = true;
    for (size_t i = kLinearW; i < kUsed; ++i) {
      if (!present_[i]) continue;
      inputs[i] = info.ConstantInput(i);
      constant = constant && inputs[i] != nullptr;
    }
    if (constant) layer_ = MakeLayer(inputs);
  }

  const OrtApi& api() const { return api_; }
  const std::string& context() const { return context_; }

  void Compute(ort::OrtKernelContext* context) {
    const OrtValue* inputs[kUsed] = {};
    for (size_t i = 0; i < (layer_ == nullptr ? size_t{kUsed} : size_t{kLinearW}); ++i) {
      if (present_[i]) ort::Check(api_, api_.KernelContext_GetInput()(context, i, &inputs[i]));
    }
    const std::unique_ptr<LinearLayer> layer_now = layer_ == nullptr ? MakeLayer(inputs) : nullptr;
    const LinearLayer& layer = layer_ == nullptr ? *layer_now : *layer_;
    Shape shape = ort::ShapeOf(api_, inputs[kLinearX]);
    CheckInputRows(shape, layer.input_size());
    LinearArgs args{};
    args.rows = 1;
    for (size_t i = 0; i + 1 < shape.size(); ++i) args.rows *= shape[i];
    if (config_.x_mode == CodeMode::kCodes) {
      args.x_codes = ort::DataOf<const uint8_t>(api_, inputs[kLinearX]);
    } else {
      args.x_float = ort::DataOf<const float>(api_, inputs[kLinearX]);
    }
    shape.data()[shape.size() - 1] = layer.output_size();
    OrtValue* y = nullptr;
    ort::Check(api_, api_.KernelContext_GetOutput()(context, 0, shape.data(), shape.size(), &y));
    if (y == nullptr) return;
    args.y = ort::DataOf<float>(api_, y);
    const ScratchPool::Lease scratch(&scratch_pool_);
    ContextParallel parallel(api_, context);
    layer.Run(args, scratch.get(), &parallel);
  }

 private:
  void CheckInput(size_t i, const ort::TensorType& type) {
    if (i >= kUsed) {
      throw std::invalid_argument("input " + std::to_string(i) +
                                  " (reserved) is reserved for later versions. Use a newer rnnqc library.");
    }
    present_[i] = true;
    ort::ElementType expected = OnlyLinearType(i);
    if (i == kLinearX) expected = config_.x_mode == CodeMode::kCodes ? ort::kUint8 : ort::kFloat;
    if (i == kLinearW) {
      packed_ = type.element == ort::kUint8;
      expected = packed_ ? ort::kUint8 : ort::kInt8;
    }
    if (type.element == expected) return;
    throw std::invalid_argument(
        "input " + std::string(kNames[i]) + " has element type " + ort::ToText(type.element) + ", expected " +
        ort::ToText(expected) + (i == kLinearW ? " or uint8 (packed weights)" : "") +
        (i == kLinearX ? " for this x_mode" : "") + ". Other types may need a newer rnnqc library.");
  }

  void CheckGroups() const {
    const bool groups = present_[kGroupMultiplier];
    if (groups != (config_.group_size > 0)) {
      throw std::invalid_argument("input W_group_multiplier is " + std::string(groups ? "present" : "missing") +
                                  ", but attribute group_size is " + std::to_string(config_.group_size) +
                                  "; expected both or neither");
    }
    if (groups && !packed_) {
      throw std::invalid_argument(
          "input W_group_multiplier is present, but W is int8; expected packed weights (uint8)");
    }
  }

  void CheckInputRows(const Shape& shape, int64_t input_size) const {
    if (shape.size() > 0 && shape[shape.size() - 1] == input_size) return;
    FailShape(kLinearX, shape, {input_size}, "[.., K] with K");
  }

  const OrtValue* Checked(size_t input, const OrtValue* value, const Shape& expected) const {
    const Shape found = ort::ShapeOf(api_, value);
    if (!ort::Fits(found, expected)) FailShape(input, found, expected, kShapes[input]);
    return value;
  }

  std::unique_ptr<LinearLayer> MakeLayer(const OrtValue* const* inputs) const {
    const float* multiplier = ort::DataOf<const float>(api_, Checked(kMultiplier, inputs[kMultiplier], {-1}));
    Matrix w{};
    w.units = ort::ShapeOf(api_, inputs[kMultiplier])[0];
    w.gates = 1;
    const Shape expected{-1, packed_ ? PackedRow(w.units, config_.bits) : w.units};
    const Shape found = ort::ShapeOf(api_, inputs[kLinearW]);
    if (!ort::Fits(found, expected)) {
      FailShape(kLinearW, found, expected, packed_ ? "[K, " + PackedRowInWords("N", config_.bits) + "]" : "[K, N]");
    }
    w.k = found[0];
    const int64_t largest = config_.x_mode == CodeMode::kDynamicRow ? kMaxDynamicInputSize : kMaxDepth;
    if (w.k < 1 || w.k > largest || w.units < 1) {
      throw std::invalid_argument("input W has shape " + ort::ToText(found) + ", expected 1 .. " +
                                  std::to_string(largest) + " rows for this x_mode and at least 1 column");
    }
    const std::vector<float> bias = ReadBias(inputs[kLinearB], w.units);
    std::vector<int8_t> values;
    if (packed_) {
      values = Unpacked(inputs, w);
      w.weights = values.data();
      if (inputs[kGroupMultiplier] != nullptr) {
        w.sets = config_.codebook == kUneven;
        w.multipliers = ort::DataOf<const uint8_t>(api_, inputs[kGroupMultiplier]);
        w.group_size = config_.group_size;
      }
    } else {
      w.weights = ort::DataOf<const int8_t>(api_, inputs[kLinearW]);
    }
    return std::make_unique<LinearLayer>(config_, kernels_, w, multiplier, bias.data());
  }

  std::vector<float> ReadBias(const OrtValue* value, int64_t columns) const {
    const Shape found = ort::ShapeOf(api_, value);
    if (found.size() != 1 || (found[0] != columns && found[0] != 1)) {
      FailShape(kLinearB, found, {columns}, kShapes[kLinearB]);
    }
    const float* bias = ort::DataOf<const float>(api_, value);
    if (found[0] == 1) return std::vector<float>(static_cast<size_t>(columns), bias[0]);
    return std::vector<float>(bias, bias + columns);
  }

  std::vector<int8_t> Unpacked(const OrtValue* const* inputs, const Matrix& w) const {
    const uint8_t* multipliers = nullptr;
    if (inputs[kGroupMultiplier] != nullptr) {
      const Shape expected{GroupCount(w.k, config_.group_size), w.units};
      const OrtValue* value = Checked(kGroupMultiplier, inputs[kGroupMultiplier], expected);
      multipliers = ort::DataOf<const uint8_t>(api_, value);
    }
    const uint8_t* packed = ort::DataOf<const uint8_t>(api_, inputs[kLinearW]);
    try {
      return UnpackWeights(packed, config_.bits, w.k, w.units, multipliers, config_.group_size, config_.codebook);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(std::string("input W: ") + error.what());
    }
  }

  const OrtApi& api_;
  const std::string context_;
  const LinearConfig config_;
  const KernelTable& kernels_;
  bool present_[kUsed] = {};
  bool packed_ = false;
  std::unique_ptr<LinearLayer> layer_;  // null if the weights are not constant
  ScratchPool scratch_pool_;
};

// X's dimensions with N in the place of the last one, unless one of them is not known by a number or a name.
ort::OrtStatus* InferLinearShape(const ort::OrtCustomOp* raw, ort::OrtShapeInferContext* context) {
  const OrtApi& api = *static_cast<const RegisteredOperator*>(raw)->api;
  return ort::Guard(api, "QuantLinear, shape inference: ", [&] {
    ort::OrtTensorTypeAndShapeInfo* x = nullptr;
    ort::OrtTensorTypeAndShapeInfo* multiplier = nullptr;
    size_t rank = 0;
    size_t vector_rank = 0;
    if (!ort::Ok(api, api.ShapeInferContext_GetInputTypeShape()(context, kLinearX, &x)) ||
        !ort::Ok(api, api.ShapeInferContext_GetInputTypeShape()(context, kMultiplier, &multiplier)) ||
        !ort::Ok(api, api.GetDimensionsCount()(x, &rank)) || rank == 0 || rank > Shape::kMaxRank ||
        !ort::Ok(api, api.GetDimensionsCount()(multiplier, &vector_rank)) || vector_rank != 1) {
      return;
    }
    Shape dims(rank);
    Shape columns(1);
    std::vector<const char*> symbols(rank);
    ort::Check(api, api.GetDimensions()(x, dims.data(), rank));
    ort::Check(api, api.GetSymbolicDimensions()(x, symbols.data(), rank));
    ort::Check(api, api.GetDimensions()(multiplier, columns.data(), 1));
    dims.data()[rank - 1] = columns[0];
    symbols[rank - 1] = "";
    for (size_t i = 0; i < rank; ++i) {
      if (dims[i] < 0 && symbols[i][0] == '\0') return;
    }
    OutputShape(api).Set(context, 0, dims, symbols);
  });
}

}  // namespace

std::vector<RegisteredOperator> QuantLinearOps(const OrtApi* api, bool infers_shapes) {
  std::vector<RegisteredOperator> ops;
  for (const char* input : {"", "Static", "Codes"}) {
    for (const char* weights : {"", "Int4", "Int4Uneven", "Int5", "Int6"}) {
      const std::string name = "QuantLinear" + std::string(input) + weights;
      ops.push_back(DescribeOperator(api, nullptr, name, name));
      RegisteredOperator& op = ops.back();
      // One input, like the aliases of cells: see DescribeOperators.
      op.GetInputTypeCount = [](const ort::OrtCustomOp*) { return size_t{1}; };
      op.GetInputType = [](const ort::OrtCustomOp*, size_t) { return ort::kUndefined; };
      op.GetInputCharacteristic = [](const ort::OrtCustomOp*, size_t) { return ort::kVariadic; };
      op.GetOutputTypeCount = [](const ort::OrtCustomOp*) { return size_t{1}; };
      op.GetOutputType = [](const ort::OrtCustomOp*, size_t) { return ort::kFloat; };
      op.GetOutputCharacteristic = [](const ort::OrtCustomOp*, size_t) { return ort::kRequired; };
      op.InferOutputShapeFn = infers_shapes ? InferLinearShape : nullptr;
      SetKernel<QuantLinearKernel>(&op);
    }
  }
  return ops;
}

}  // namespace rnnqc
