#include "ops/registered_operator.h"

#include <stdexcept>
#include <utility>

namespace rnnqc {

using ort::OrtApi;

namespace {

// For every operator: the least value of the attribute operator_version, and its default.
constexpr int64_t kOldestVersion = 1;
// From 2 on packed weights may have 5 and 6 bits, from 3 on codebooks, from 4 on wide columns; from 5 on cells may read
// rows of an embedding, from 6 on their input in parts or multiplied by factors.
constexpr int64_t kNewestVersion = 6;

}  // namespace

void CheckVersion(const ort::KernelInfo& info) {
  int64_t version = 1;
  info.Read("operator_version", &version);
  if (version >= kOldestVersion && version <= kNewestVersion) return;
  const std::string found = "the file has version " + std::to_string(version) +
                            " of the operator, and the library (rnnqc " RNNQC_VERSION ") computes ";
  if (version > kNewestVersion) {
    throw std::invalid_argument(found + "up to version " + std::to_string(kNewestVersion) +
                                ". Use a newer library, or run the file without it.");
  }
  throw std::invalid_argument(found + "from version " + std::to_string(kOldestVersion) +
                              " on. Lower the float model again, or run the file without the library.");
}

std::string AliasName(const std::string& name, size_t number) {
  return name + (number < 10 ? "_0" : "_") + std::to_string(number);
}

void SetVariadicInput(RegisteredOperator* op) {
  op->GetInputTypeCount = [](const ort::OrtCustomOp*) { return size_t{1}; };
  op->GetInputType = [](const ort::OrtCustomOp*, size_t) { return ort::kUndefined; };
  op->GetInputCharacteristic = [](const ort::OrtCustomOp*, size_t) { return ort::kVariadic; };
}

void SetVariadicFloatOutput(RegisteredOperator* op) {
  op->GetOutputTypeCount = [](const ort::OrtCustomOp*) { return size_t{1}; };
  op->GetOutputType = [](const ort::OrtCustomOp*, size_t) { return ort::kFloat; };
  op->GetOutputCharacteristic = [](const ort::OrtCustomOp*, size_t) { return ort::kVariadic; };
  op->GetVariadicOutputHomogeneity = [](const ort::OrtCustomOp*) { return 1; };
}

RegisteredOperator DescribeOperator(const OrtApi* api, const void* description, std::string kind, std::string name) {
  RegisteredOperator op{};
  op.kind = std::move(kind);
  op.name = std::move(name);
  op.version = ort::kApiVersion;
  op.api = api;
  op.description = description;
  op.GetName = [](const ort::OrtCustomOp* self) { return static_cast<const RegisteredOperator*>(self)->name.c_str(); };
  op.GetExecutionProviderType = [](const ort::OrtCustomOp*) -> const char* { return nullptr; };
  op.GetOutputCharacteristic = [](const ort::OrtCustomOp*, size_t) { return ort::kOptional; };
  op.GetInputMemoryType = [](const ort::OrtCustomOp*, size_t) { return ort::kMemoryDefault; };
  op.GetVariadicInputMinArity = [](const ort::OrtCustomOp*) { return 1; };
  op.GetVariadicInputHomogeneity = [](const ort::OrtCustomOp*) { return 0; };
  op.GetVariadicOutputMinArity = [](const ort::OrtCustomOp*) { return 1; };
  op.GetVariadicOutputHomogeneity = [](const ort::OrtCustomOp*) { return 0; };
  op.GetStartVersion = [](const ort::OrtCustomOp*) { return 1; };
  op.GetEndVersion = [](const ort::OrtCustomOp*) { return 1; };
  return op;
}

OutputShape::OutputShape(const OrtApi& api) : api_(api) {
  ort::Check(api_, api_.CreateTensorTypeAndShapeInfo()(&info_));
}

OutputShape::~OutputShape() { api_.ReleaseTensorTypeAndShapeInfo()(info_); }

void OutputShape::Set(const ort::OrtShapeInferContext* context, size_t index, ort::Shape shape,
                      std::vector<const char*> symbols, ort::ElementType type) {
  ort::Check(api_, api_.SetTensorElementType()(info_, type));
  ort::Check(api_, api_.SetDimensions()(info_, shape.data(), shape.size()));
  ort::Check(api_, api_.SetSymbolicDimensions()(info_, symbols.data(), symbols.size()));
  // An error means that the node does not have this output.
  ort::Ok(api_, api_.ShapeInferContext_SetOutputTypeShape()(context, index, info_));
}

}  // namespace rnnqc
