#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ops/operators.h"
#include "rearrange/rearrangement.h"

namespace rnnqc {
namespace {

using ort::OrtApi;
using ort::OrtValue;
using ort::Shape;

constexpr const char* kName = "Rearrange";
constexpr size_t kAliases = 32;
constexpr size_t kMost = 32;  // inputs or outputs

// The number of elements; throws std::invalid_argument beyond kMaxElements, or where a dimension is negative.
int64_t ElementsOf(const Shape& shape, const std::string& what) {
  int64_t count = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] < 0 || (shape[i] > 0 && count > kMaxElements / shape[i])) {
      throw std::invalid_argument(what + " is " + ort::ToText(shape) + ", expected at most " +
                                  std::to_string(kMaxElements) + " elements");
    }
    count *= shape[i];
  }
  return count;
}

// Reads an attribute with the shapes of several tensors: the number of dimensions of each, then the dimensions.
std::vector<Shape> ShapesIn(const char* name, const std::vector<int64_t>& numbers) {
  std::vector<Shape> shapes;
  for (size_t i = 0; i < numbers.size();) {
    const int64_t rank = numbers[i++];
    if (rank < 0 || rank > static_cast<int64_t>(Shape::kMaxRank) || rank > static_cast<int64_t>(numbers.size() - i)) {
      throw std::invalid_argument("attribute " + std::string(name) + ": number " + std::to_string(i - 1) + " is " +
                                  std::to_string(rank) + ", expected the number of dimensions that follow, at most " +
                                  std::to_string(Shape::kMaxRank));
    }
    Shape shape(static_cast<size_t>(rank));
    for (int64_t k = 0; k < rank; ++k) shape.data()[k] = numbers[i++];
    shapes.push_back(shape);
  }
  if (shapes.empty() || shapes.size() > kMost) {
    throw std::invalid_argument("attribute " + std::string(name) + " has " + std::to_string(shapes.size()) +
                                " shapes, expected 1 .. " + std::to_string(kMost));
  }
  return shapes;
}

std::vector<Shape> ReadShapes(const ort::KernelInfo& info, const char* name) {
  std::vector<int64_t> numbers;
  if (!info.Read(name, &numbers)) throw std::invalid_argument("attribute " + std::string(name) + " is missing");
  return ShapesIn(name, numbers);
}

// A node. An invalid one throws std::invalid_argument, which names the input and what is expected.
class RearrangeKernel {
 public:
  RearrangeKernel(const OrtApi& api, const ort::KernelInfo& info, std::string context)
      : api_(api),
        context_(std::move(context)),
        inputs_(ReadShapes(info, "input_shapes")),
        outputs_(ReadShapes(info, "output_shapes")),
        rearrangement_(MakeRearrangement(info)) {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      ort::TensorType type;
      if (!info.InputType(i, &type)) throw std::invalid_argument("input " + std::to_string(i) + " is missing");
    }
  }

  const OrtApi& api() const { return api_; }
  const std::string& context() const { return context_; }

  void Compute(ort::OrtKernelContext* context) const {
    const void* inputs[kMost];
    void* outputs[kMost];
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const OrtValue* value = nullptr;
      ort::Check(api_, api_.KernelContext_GetInput()(context, i, &value));
      const Shape found = ort::ShapeOf(api_, value);
      if (!ort::Fits(found, inputs_[i])) {
        throw std::invalid_argument("input " + std::to_string(i) + " has shape " + ort::ToText(found) + ", expected " +
                                    ort::ToText(inputs_[i]));
      }
      inputs[i] = ort::DataOf<const void>(api_, value);
    }
    for (size_t k = 0; k < outputs_.size(); ++k) {
      OrtValue* value = nullptr;
      ort::Check(api_, api_.KernelContext_GetOutput()(context, k, outputs_[k].data(), outputs_[k].size(), &value));
      outputs[k] = value == nullptr ? nullptr : ort::DataOf<void>(api_, value);
    }
    rearrangement_.Run(inputs, outputs);
  }

 private:
  static void CheckCount(const char* what, size_t found, const char* name, size_t expected) {
    if (found == expected) return;
    throw std::invalid_argument("the node has " + std::to_string(found) + " " + what + ", and attribute " + name + " " +
                                std::to_string(expected) + " shapes");
  }

  Rearrangement MakeRearrangement(const ort::KernelInfo& info) const {
    CheckCount("inputs", info.InputCount(), "input_shapes", inputs_.size());
    CheckCount("outputs", info.OutputCount(), "output_shapes", outputs_.size());
    std::vector<int64_t> copies;
    if (!info.Read("copies", &copies)) throw std::invalid_argument("attribute copies is missing");
    return Rearrangement(Sizes("input_shapes", inputs_), Sizes("output_shapes", outputs_), copies);
  }

  static std::vector<int64_t> Sizes(const char* name, const std::vector<Shape>& shapes) {
    std::vector<int64_t> sizes;
    for (const Shape& shape : shapes) sizes.push_back(ElementsOf(shape, "a shape of attribute " + std::string(name)));
    return sizes;
  }

  const OrtApi& api_;
  const std::string context_;
  const std::vector<Shape> inputs_;
  const std::vector<Shape> outputs_;
  const Rearrangement rearrangement_;
};

// The outputs have the shapes in the node's attribute.
ort::OrtStatus* InferShapes(const ort::OrtCustomOp* raw, ort::OrtShapeInferContext* context) {
  const OrtApi& api = *static_cast<const RegisteredOperator*>(raw)->api;
  return ort::Guard(api, "Rearrange, shape inference: ", [&] {
    const ort::OrtOpAttr* attribute = nullptr;
    size_t bytes = 0;
    if (!ort::Ok(api, api.ShapeInferContext_GetAttribute()(context, "output_shapes", &attribute))) return;
    ort::Ok(api, api.ReadOpAttr()(attribute, ort::kAttributeInts, nullptr, 0, &bytes));  // fails, and says the size
    std::vector<int64_t> numbers(bytes / sizeof(int64_t));
    ort::Check(api, api.ReadOpAttr()(attribute, ort::kAttributeInts, numbers.data(), bytes, &bytes));
    const std::vector<Shape> shapes = ShapesIn("output_shapes", numbers);
    for (size_t k = 0; k < shapes.size(); ++k) {
      // A shape that has held more dimensions keeps them.
      OutputShape(api).Set(context, k, shapes[k], std::vector<const char*>(shapes[k].size(), ""));
    }
  });
}

RegisteredOperator Describe(const OrtApi* api, const std::string& name, bool infers_shapes) {
  RegisteredOperator op = DescribeOperator(api, nullptr, name, name);
  SetVariadicInput(&op);
  op.GetInputType = [](const ort::OrtCustomOp*, size_t) { return ort::kFloat; };  // costs less than any type
  op.GetVariadicInputHomogeneity = [](const ort::OrtCustomOp*) { return 1; };
  SetVariadicFloatOutput(&op);
  op.InferOutputShapeFn = infers_shapes ? InferShapes : nullptr;
  SetKernel<RearrangeKernel>(&op);
  return op;
}

}  // namespace

std::vector<RegisteredOperator> RearrangeOps(const OrtApi* api, bool infers_shapes) {
  std::vector<RegisteredOperator> ops = {Describe(api, kName, infers_shapes)};
  for (size_t number = 0; number < kAliases; ++number) {
    ops.push_back(Describe(api, AliasName(kName, number), infers_shapes));
  }
  return ops;
}

}  // namespace rnnqc
