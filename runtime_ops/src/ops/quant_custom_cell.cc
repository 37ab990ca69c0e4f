#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "custom/custom_layer.h"
#include "kernels/dispatch.h"
#include "ops/called_operators.h"
#include "ops/operators.h"

namespace rnnqc {
namespace {

using ort::OrtApi;
using ort::OrtValue;
using ort::Shape;

constexpr const char* kName = "QuantCustomCell";
constexpr size_t kAliases = 12;

ort::ElementType ElementOf(NumberType type) {
  switch (type) {
    case NumberType::kF32:
      return ort::kFloat;
    case NumberType::kF64:
      return ort::kDouble;
    case NumberType::kI32:
      return ort::kInt32;
    case NumberType::kU8:
      return ort::kUint8;
    default:
      return ort::kBool;
  }
}

Program ReadProgram(const ort::KernelInfo& info) {
  std::string text;
  if (!info.Read("program", &text)) throw std::invalid_argument("attribute program is missing");
  try {
    return ParseProgram(text);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("attribute program: ") + error.what());
  }
}

bool ReadReverse(const ort::KernelInfo& info) {
  int64_t reverse = 0;
  info.Read("reverse", &reverse);
  if (reverse != 0 && reverse != 1) {
    throw std::invalid_argument("attribute reverse is " + std::to_string(reverse) + ", expected 0 or 1");
  }
  return reverse == 1;
}

// A node. An invalid one throws std::invalid_argument, which names the input and what is expected.
class QuantCustomCellKernel {
 public:
  QuantCustomCellKernel(const OrtApi& api, const ort::KernelInfo& info, std::string context)
      : api_(api),
        context_(std::move(context)),
        program_(ReadProgram(info)),
        reverse_(ReadReverse(info)),
        operators_(api, info, program_) {
    for (const std::vector<int32_t>* list : {&program_.states, &program_.inputs, &program_.constants}) {
      order_.insert(order_.end(), list->begin(), list->end());
    }
    if (info.InputCount() != order_.size()) {
      throw std::invalid_argument("it has " + std::to_string(info.InputCount()) + " inputs, and its program " +
                                  std::to_string(order_.size()));
    }
    std::vector<const OrtValue*> constants(order_.size());
    bool constant = true;
    for (size_t i = 0; i < order_.size(); ++i) {
      CheckType(info, i);
      if (i < first_constant()) continue;
      constants[i] = info.ConstantInput(i);
      constant = constant && constants[i] != nullptr;
    }
    if (constant) layer_ = MakeLayer(constants);
  }

  const OrtApi& api() const { return api_; }
  const std::string& context() const { return context_; }

  void Compute(ort::OrtKernelContext* context) {
    std::vector<const OrtValue*> inputs(order_.size());
    for (size_t i = 0; i < order_.size(); ++i) {
      ort::Check(api_, api_.KernelContext_GetInput()(context, i, &inputs[i]));
      if (inputs[i] == nullptr) throw std::invalid_argument("input " + std::to_string(i) + " is missing");
    }
    const std::unique_ptr<CustomLayer> layer_now = layer_ == nullptr ? MakeLayer(inputs) : nullptr;
    const CustomLayer& layer = layer_ == nullptr ? *layer_now : *layer_;
    CustomArgs args = Args(inputs);
    UseOutputs(context, &args);
    if (args.batch == 0) return;
    OperatorCalls calls(operators_, context, CallConstants(inputs));
    const ScratchPool::Lease scratch(&scratch_pool_);
    layer.Run(args, scratch.get(), &calls);
  }

 private:
  size_t first_constant() const { return program_.states.size() + program_.inputs.size(); }

  void CheckType(const ort::KernelInfo& info, size_t i) const {
    const ort::ElementType expected = ElementOf(program_.value(order_[i]).type);
    ort::TensorType type;
    if (!info.InputType(i, &type)) throw std::invalid_argument("input " + std::to_string(i) + " is missing");
    if (type.element == expected) return;
    throw std::invalid_argument("input " + std::to_string(i) + " has element type " + ort::ToText(type.element) +
                                ", its program " + ort::ToText(expected));
  }

  [[noreturn]] void FailShape(size_t i, const Shape& found, const Shape& expected) const {
    throw std::invalid_argument("input " + std::to_string(i) + " has shape " + ort::ToText(found) + ", expected " +
                                ort::ToText(expected));
  }

  void CheckShape(size_t i, const OrtValue* value, const Shape& expected) const {
    const Shape found = ort::ShapeOf(api_, value);
    if (!ort::Fits(found, expected)) FailShape(i, found, expected);
  }

  std::unique_ptr<CustomLayer> MakeLayer(const std::vector<const OrtValue*>& inputs) const {
    std::vector<const void*> constants;
    for (size_t i = first_constant(); i < order_.size(); ++i) {
      const ProgramValue& value = program_.value(order_[i]);
      const Shape found = ort::ShapeOf(api_, inputs[i]);
      if (value.kind == ValueKind::kMatrix) {
        CheckShape(i, inputs[i], {value.depth, value.columns});
      } else {
        // A row, so that results of onnxruntime's operators have no more rows than the batch.
        int64_t rows = 1;
        for (size_t k = 0; k + 1 < found.size(); ++k) rows *= found[k];
        const int64_t count = rows == 1 ? (found.empty() ? 1 : found[found.size() - 1]) : 0;
        if (count != value.columns) FailShape(i, found, {value.columns});
      }
      constants.push_back(ort::DataOf<const void>(api_, inputs[i]));
    }
    return std::make_unique<CustomLayer>(program_, SelectedTable(), constants);
  }

  CustomArgs Args(const std::vector<const OrtValue*>& inputs) const {
    CustomArgs args{};
    args.reverse = reverse_;
    const Shape first = ort::ShapeOf(api_, inputs[program_.states.size()]);
    if (first.size() != 3) FailShape(program_.states.size(), first, {-1, -1, -1});
    args.time = first[0];
    args.batch = first[1];
    if (args.time < 1) {
      throw std::invalid_argument("input " + std::to_string(program_.states.size()) + " has shape " +
                                  ort::ToText(first) + ": an empty sequence");
    }
    for (size_t i = 0; i < first_constant(); ++i) {
      const int64_t columns = program_.value(order_[i]).columns;
      if (i < program_.states.size()) {
        CheckShape(i, inputs[i], {args.batch, columns});
        args.initial.push_back(ort::DataOf<const float>(api_, inputs[i]));
      } else {
        CheckShape(i, inputs[i], {args.time, args.batch, columns});
        args.inputs.push_back(ort::DataOf<const void>(api_, inputs[i]));
      }
    }
    return args;
  }

  float* Output(ort::OrtKernelContext* context, size_t index, const Shape& shape) const {
    size_t count = 0;
    ort::Check(api_, api_.KernelContext_GetOutputCount()(context, &count));
    if (index >= count) return nullptr;
    OrtValue* value = nullptr;
    ort::Check(api_, api_.KernelContext_GetOutput()(context, index, shape.data(), shape.size(), &value));
    return value == nullptr ? nullptr : ort::DataOf<float>(api_, value);
  }

  void UseOutputs(ort::OrtKernelContext* context, CustomArgs* args) const {
    size_t index = 0;
    for (const int32_t state : program_.states) {
      args->final.push_back(Output(context, index++, {args->batch, program_.value(state).columns}));
    }
    for (const int32_t output : program_.outputs) {
      const Shape shape{args->time, args->batch, program_.value(output).columns};
      args->outputs.push_back(Output(context, index++, shape));
    }
  }

  std::vector<std::vector<const OrtValue*>> CallConstants(const std::vector<const OrtValue*>& inputs) const {
    std::vector<std::vector<const OrtValue*>> constants;
    for (const Instruction& each : program_.instructions) {
      if (each.action != Action::kCall) continue;
      constants.emplace_back();
      for (const int32_t operand : each.operands) {
        const auto place = std::find(order_.begin() + static_cast<int64_t>(first_constant()), order_.end(), operand);
        const bool constant = place != order_.end();
        constants.back().push_back(constant ? inputs[static_cast<size_t>(place - order_.begin())] : nullptr);
      }
    }
    return constants;
  }

  const OrtApi& api_;
  const std::string context_;
  const Program program_;
  const bool reverse_;
  const CalledOperators operators_;
  std::vector<int32_t> order_;          // by input of the node the value of the program
  std::unique_ptr<CustomLayer> layer_;  // null if the constants are not constant
  ScratchPool scratch_pool_;
};

RegisteredOperator Describe(const OrtApi* api, const std::string& name) {
  RegisteredOperator op = DescribeOperator(api, nullptr, name, name);
  SetVariadicInput(&op);
  SetVariadicFloatOutput(&op);
  SetKernel<QuantCustomCellKernel>(&op);
  return op;
}

}  // namespace

std::vector<RegisteredOperator> QuantCustomCellOps(const OrtApi* api, bool /*infers_shapes*/) {
  std::vector<RegisteredOperator> ops = {Describe(api, kName)};
  for (size_t number = 0; number < kAliases; ++number) ops.push_back(Describe(api, AliasName(kName, number)));
  return ops;
}

}  // namespace rnnqc
