#include "ops/cell_operator.h"

#include <string>
#include <utility>
#include <vector>

namespace rnnqc {
namespace {

using ort::OrtApi;
using ort::Shape;

const CellOperator& CellOf(const ort::OrtCustomOp* op) {
  return *static_cast<const CellOperator*>(static_cast<const RegisteredOperator*>(op)->description);
}

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
  const auto& op = *static_cast<const RegisteredOperator*>(raw);
  const CellOperator& cell = CellOf(raw);
  const OrtApi& api = *op.api;
  return ort::Guard(api, op.kind + ", shape inference: ", [&] {
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
    for (size_t index = 1; index < cell.codes_output(); ++index) {
      if (IsSet(api, context, "state_direction_axis")) {
        shape.Set(context, index, {1, dims[1], hidden}, {"", symbols[1], ""});
      } else {
        shape.Set(context, index, {dims[1], hidden}, {symbols[1], ""});
      }
    }
    if (!known(0)) return;
    shape.Set(context, cell.codes_output(), {dims[0], dims[1], hidden}, {symbols[0], symbols[1], ""}, ort::kUint8);
    if (IsSet(api, context, "y_direction_axis")) {
      shape.Set(context, 0, {dims[0], 1, dims[1], hidden}, {symbols[0], "", symbols[1], ""});
    } else {
      shape.Set(context, 0, {dims[0], dims[1], hidden}, {symbols[0], symbols[1], ""});
    }
  });
}

RegisteredOperator Describe(const OrtApi* api, const CellOperator& cell, bool infers_shapes, std::string name) {
  RegisteredOperator op = DescribeOperator(api, &cell, cell.name, std::move(name));
  op.GetInputTypeCount = [](const ort::OrtCustomOp*) { return size_t{kInputCount}; };
  op.GetInputType = [](const ort::OrtCustomOp*, size_t index) { return OnlyType(index); };
  op.GetOutputTypeCount = [](const ort::OrtCustomOp* self) { return CellOf(self).output_count; };
  op.GetOutputType = [](const ort::OrtCustomOp* self, size_t index) {
    return index == CellOf(self).codes_output() ? ort::kUint8 : ort::kFloat;
  };
  op.GetInputCharacteristic = [](const ort::OrtCustomOp*, size_t index) {
    return index < kGateTable ? ort::kRequired : ort::kOptional;
  };
  op.GetVariadicInputMinArity = [](const ort::OrtCustomOp*) { return int{kGateTable}; };
  op.InferOutputShapeFn = infers_shapes ? InferShapes : nullptr;
  return op;
}

}  // namespace

std::vector<RegisteredOperator> DescribeOperators(const OrtApi* api, const CellOperator& cell, bool infers_shapes) {
  std::vector<RegisteredOperator> ops = {Describe(api, cell, infers_shapes, cell.name)};
  for (size_t number = 0; number < cell.aliases; ++number) {
    ops.push_back(Describe(api, cell, infers_shapes, AliasName(cell.name, number)));
    SetVariadicInput(&ops.back());
  }
  return ops;
}

}  // namespace rnnqc
