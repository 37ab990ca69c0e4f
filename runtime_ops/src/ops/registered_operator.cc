#include "ops/registered_operator.h"

#include <utility>

namespace rnnqc {

using ort::OrtApi;

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
