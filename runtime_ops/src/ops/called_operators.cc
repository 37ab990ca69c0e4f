#include "ops/called_operators.h"

#include <stdexcept>
#include <string>

namespace rnnqc {
namespace {

using ort::OrtApi;

struct Known {
  const char* name;
  int least_operands;
  int most_operands;
  const char* second_type;  // of its kernel's two type constraints the second; null if it has one
};

constexpr Known kKnown[] = {
    {"Atan", 1, 1, nullptr},
    {"Ceil", 1, 1, nullptr},
    {"Celu", 1, 1, nullptr},
    {"Cos", 1, 1, nullptr},
    {"Elu", 1, 1, nullptr},
    {"Erf", 1, 1, nullptr},
    {"Exp", 1, 1, nullptr},
    {"Floor", 1, 1, nullptr},
    {"Gelu", 1, 1, nullptr},
    {"HardSigmoid", 1, 1, nullptr},
    {"LeakyRelu", 1, 1, nullptr},
    {"Log", 1, 1, nullptr},
    {"Reciprocal", 1, 1, nullptr},
    {"Relu", 1, 1, nullptr},
    {"Selu", 1, 1, nullptr},
    {"Sigmoid", 1, 1, nullptr},
    {"Sign", 1, 1, nullptr},
    {"Sin", 1, 1, nullptr},
    {"Softplus", 1, 1, nullptr},
    {"Softsign", 1, 1, nullptr},
    {"Sqrt", 1, 1, nullptr},
    {"Tanh", 1, 1, nullptr},
    {"ThresholdedRelu", 1, 1, nullptr},
    // Operators on two numbers each.
    {"Mod", 2, 2, nullptr},
    {"Pow", 2, 2, "T1"},
    {"PRelu", 2, 2, nullptr},
    // Operators on a row each.
    {"LayerNormalization", 2, 3, "U"},
    {"LogSoftmax", 1, 1, nullptr},
    {"Softmax", 1, 1, nullptr},
    {"ReduceL2", 1, 1, nullptr},
    {"ReduceMax", 1, 1, nullptr},
    {"ReduceMin", 1, 1, nullptr},
    {"ReduceMean", 1, 1, nullptr},
    {"ReduceSum", 1, 1, nullptr},
    {"ReduceSumSquare", 1, 1, nullptr},
    {"Clip", 3, 3, nullptr},
    {"Where", 3, 3, nullptr},
};

const Known& KnownOperator(const CalledOperator& called, size_t operands) {
  for (const Known& each : kKnown) {
    if (called.name != each.name) continue;
    if (operands < static_cast<size_t>(each.least_operands) || operands > static_cast<size_t>(each.most_operands)) {
      throw std::invalid_argument("attribute program: call of " + called.name + " with " + std::to_string(operands) +
                                  " operands");
    }
    return each;
  }
  throw std::invalid_argument("attribute program: \"" + called.name +
                              "\" is no operator that can be called. It may need a newer rnnqc library");
}

// The result has the shape of the operand's rows, or one column, only if the operator works along the last axis.
void CheckAxes(const CalledOperator& called) {
  bool reduces = called.name.compare(0, 6, "Reduce") != 0;
  for (const CallAttribute& each : called.attributes) {
    const bool last = each.numbers.size() == 1 && (each.numbers[0] == -1 || each.numbers[0] == 1);
    if ((each.name == "axis" || each.name == "axes") && !last) {
      throw std::invalid_argument("attribute program: " + called.name + " has an axis that is not the last one");
    }
    if (each.name == "keepdims" && (each.numbers.size() != 1 || each.numbers[0] != 1)) {
      throw std::invalid_argument("attribute program: " + called.name + " makes no column");
    }
    reduces = reduces || (each.name == "axes" && each.kind == AttributeKind::kInts);
  }
  if (!reduces) throw std::invalid_argument("attribute program: " + called.name + " without attribute axes");
}

class Attributes {
 public:
  Attributes(const OrtApi& api, const CalledOperator& called) : api_(api) {
    for (const CallAttribute& each : called.attributes) {
      ort::OrtOpAttr* made = nullptr;
      ort::Check(api, api.CreateOpAttr()(each.name.c_str(), Data(each), Length(each), Type(each.kind), &made));
      made_.push_back(made);
    }
  }
  ~Attributes() {
    for (ort::OrtOpAttr* each : made_) api_.ReleaseOpAttr()(each);
  }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  const ort::OrtOpAttr* const* data() const { return made_.data(); }
  int size() const { return static_cast<int>(made_.size()); }

 private:
  static const void* Data(const CallAttribute& each) {
    if (each.kind == AttributeKind::kFloat) return &each.real;
    if (each.kind == AttributeKind::kString) return each.text.c_str();
    return each.numbers.data();
  }

  static int Length(const CallAttribute& each) {
    if (each.kind == AttributeKind::kString) return static_cast<int>(each.text.size());
    return each.kind == AttributeKind::kInts ? static_cast<int>(each.numbers.size()) : 1;
  }

  static ort::OpAttrType Type(AttributeKind kind) {
    constexpr ort::OpAttrType kTypes[] = {ort::kAttributeInt, ort::kAttributeInts, ort::kAttributeFloat,
                                          ort::kAttributeString};
    return kTypes[static_cast<size_t>(kind)];
  }

  const OrtApi& api_;
  std::vector<ort::OrtOpAttr*> made_;
};

}  // namespace

CalledOperators::CalledOperators(const OrtApi& api, const ort::KernelInfo& info, const Program& program) : api_(api) {
  try {
    for (const Instruction& instruction : program.instructions) {
      if (instruction.action != Action::kCall) continue;
      if (memory_ == nullptr) {
        ort::Check(api, api.CreateCpuMemoryInfo()(ort::kDeviceAllocator, ort::kMemoryDefault, &memory_));
      }
      const CalledOperator& called = program.calls[instruction.call];
      const size_t operands = instruction.operands.size();
      const Known& known = KnownOperator(called, operands);
      CheckAxes(called);
      const Attributes attributes(api, called);
      const char* names[] = {"T", known.second_type};
      const ort::ElementType types[] = {ort::kFloat, ort::kFloat};
      ort::OrtOp* op = nullptr;
      ort::Check(api, api.CreateOp()(info.raw(), called.name.c_str(), "", called.version, names, types,
                                     known.second_type == nullptr ? 1 : 2, attributes.data(), attributes.size(),
                                     static_cast<int>(operands), 1, &op));
      ops_.push_back(op);
    }
  } catch (...) {
    Release();
    throw;
  }
}

CalledOperators::~CalledOperators() { Release(); }

void CalledOperators::Release() {
  for (ort::OrtOp* each : ops_) api_.ReleaseOp()(each);
  if (memory_ != nullptr) api_.ReleaseMemoryInfo()(memory_);
}

OperatorCalls::OperatorCalls(const CalledOperators& operators, const ort::OrtKernelContext* context,
                             const std::vector<std::vector<const ort::OrtValue*>>& constants)
    : operators_(operators), context_(context), values_(constants.size()) {
  for (size_t i = 0; i < values_.size(); ++i) {
    values_[i].operands = constants[i];
    values_[i].own.resize(constants[i].size());
  }
}

OperatorCalls::~OperatorCalls() {
  for (const Values& each : values_) {
    for (ort::OrtValue* own : each.own) {
      if (own != nullptr) operators_.api().ReleaseValue()(own);
    }
    if (each.y != nullptr) operators_.api().ReleaseValue()(each.y);
  }
}

ort::OrtValue* OperatorCalls::Tensor(void* data, NumberType type, int64_t rows, int64_t columns) const {
  const int64_t shape[] = {rows, columns};
  ort::OrtValue* value = nullptr;
  const size_t bytes = static_cast<size_t>(rows * columns * SizeOf(type));
  const ort::ElementType element = type == NumberType::kBool ? ort::kBool : ort::kFloat;
  const OrtApi& api = operators_.api();
  ort::Check(api, api.CreateTensorWithDataAsOrtValue()(operators_.memory(), data, bytes, shape, 2, element, &value));
  return value;
}

void OperatorCalls::BindOperand(size_t index, size_t position, const void* x, NumberType type, int64_t rows,
                                int64_t columns) {
  Values& values = values_[index];
  values.own[position] = Tensor(const_cast<void*>(x), type, rows, columns);
  values.operands[position] = values.own[position];
}

void OperatorCalls::BindResult(size_t index, float* y, int64_t rows, int64_t columns) {
  values_[index].y = Tensor(y, NumberType::kF32, rows, columns);
}

void OperatorCalls::Call(size_t index) {
  const Values& values = values_[index];
  ort::OrtStatus* status = operators_.api().InvokeOp()(context_, operators_.op(index), values.operands.data(),
                                                       static_cast<int>(values.operands.size()), &values.y, 1);
  ort::Check(operators_.api(), status);
}

}  // namespace rnnqc
