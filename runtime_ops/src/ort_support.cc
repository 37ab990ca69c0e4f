#include "ort_support.h"

#include <memory>

namespace rnnqc::ort {
namespace {

// The first runtime that registered the operators, if it has later entries.
const OrtApi* api_with_later = nullptr;
const OrtLaterApi* later_api = nullptr;

Shape DimensionsOf(const OrtApi& api, const OrtTensorTypeAndShapeInfo* info) {
  size_t rank = 0;
  Check(api, api.GetDimensionsCount()(info, &rank));
  Shape shape(rank);
  if (rank > 0) Check(api, api.GetDimensions()(info, shape.data(), rank));
  return shape;
}

// The shape of a value by the entry that allocates nothing.
Shape ReferredShape(const OrtApi& api, const OrtValue* value) {
  ElementType element;
  const int64_t* dims = nullptr;
  size_t rank = 0;
  Check(api, later_api->GetTensorElementTypeAndShapeDataReference()(value, &element, &dims, &rank));
  Shape shape(rank);
  // In a form that compilers do not turn into a copy of bytes, which takes longer.
  for (size_t i = 0; i < Shape::kMaxRank; ++i) {
    if (i < rank) shape.data()[i] = dims[i];
  }
  return shape;
}

}  // namespace

void Shape::FailRank(size_t rank) {
  throw std::invalid_argument("a tensor has " + std::to_string(rank) + " dimensions, expected at most " +
                              std::to_string(kMaxRank));
}

std::string ToText(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += shape[i] < 0 ? "?" : std::to_string(shape[i]);
  }
  return text + "]";
}

const char* ToText(ElementType type) {
  static const char* const names[] = {"undefined", "float",  "uint8",     "int8",       "uint16",  "int16",
                                      "int32",     "int64",  "string",    "bool",       "float16", "double",
                                      "uint32",    "uint64", "complex64", "complex128", "bfloat16"};
  const size_t index = static_cast<size_t>(type);
  return index < sizeof(names) / sizeof(names[0]) ? names[index] : "another type";
}

void Fail(const OrtApi& api, OrtStatus* status) {
  const std::string message = api.GetErrorMessage()(status);
  api.ReleaseStatus()(status);
  throw std::runtime_error("onnxruntime reports: " + message);
}

bool Ok(const OrtApi& api, OrtStatus* status) {
  if (status == nullptr) return true;
  api.ReleaseStatus()(status);
  return false;
}

std::string KernelInfo::NodeName() const {
  size_t size = 0;
  Check(api_, api_.KernelInfo_GetNodeName()(info_, nullptr, &size));
  std::string name(size, '\0');
  Check(api_, api_.KernelInfo_GetNodeName()(info_, &name[0], &size));
  name.resize(size > 0 ? size - 1 : 0);
  return name;
}

size_t KernelInfo::InputCount() const {
  size_t count = 0;
  Check(api_, api_.KernelInfo_GetInputCount()(info_, &count));
  return count;
}

size_t KernelInfo::OutputCount() const {
  size_t count = 0;
  Check(api_, api_.KernelInfo_GetOutputCount()(info_, &count));
  return count;
}

bool KernelInfo::InputType(size_t index, TensorType* type) const {
  OrtTypeInfo* owned = nullptr;
  if (index >= InputCount() || !Ok(api_, api_.KernelInfo_GetInputTypeInfo()(info_, index, &owned))) return false;
  const auto release = [this](OrtTypeInfo* info) { api_.ReleaseTypeInfo()(info); };
  const std::unique_ptr<OrtTypeInfo, decltype(release)> type_info(owned, release);
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  Check(api_, api_.CastTypeInfoToTensorInfo()(owned, &tensor));
  if (tensor == nullptr) {
    *type = TensorType();
    return true;
  }
  Check(api_, api_.GetTensorElementType()(tensor, &type->element));
  type->shape = DimensionsOf(api_, tensor);
  type->ranked = !type->shape.empty();
  return true;
}

bool KernelInfo::HasOutput(size_t index) const {
  OrtTypeInfo* owned = nullptr;
  if (index >= OutputCount() || !Ok(api_, api_.KernelInfo_GetOutputTypeInfo()(info_, index, &owned))) return false;
  api_.ReleaseTypeInfo()(owned);
  return true;
}

const OrtValue* KernelInfo::ConstantInput(size_t index) const {
  int is_constant = 0;
  const OrtValue* value = nullptr;
  Check(api_, api_.KernelInfoGetConstantInput_tensor()(info_, index, &is_constant, &value));
  return is_constant != 0 ? value : nullptr;
}

// onnxruntime has no query for the type of an attribute: absence is told from another type by the message, which says
// so or speaks of the type where the attribute exists. Should messages change, it is read as every other type, which
// takes a few microseconds for each attribute.
bool KernelInfo::Found(const char* name, const char* expected, OrtStatus* status) const {
  if (status == nullptr) return true;
  const std::string message = api_.GetErrorMessage()(status);
  api_.ReleaseStatus()(status);
  if (message.find("No attribute with name") != std::string::npos) return false;
  float real;
  int64_t integer;
  size_t size = 0;
  const bool exists = message.find("type") != std::string::npos ||
                      Ok(api_, api_.KernelInfoGetAttribute_float()(info_, name, &real)) ||
                      Ok(api_, api_.KernelInfoGetAttribute_int64()(info_, name, &integer)) ||
                      Ok(api_, api_.KernelInfoGetAttribute_string()(info_, name, nullptr, &size));
  if (exists) {
    throw std::invalid_argument("attribute " + std::string(name) + " has another type than the expected " + expected +
                                " (" + message + ")");
  }
  return false;
}

bool KernelInfo::Read(const char* name, float* value) const {
  float read = 0;
  if (!Found(name, "float", api_.KernelInfoGetAttribute_float()(info_, name, &read))) return false;
  *value = read;
  return true;
}

bool KernelInfo::Read(const char* name, int64_t* value) const {
  int64_t read = 0;
  if (!Found(name, "int", api_.KernelInfoGetAttribute_int64()(info_, name, &read))) return false;
  *value = read;
  return true;
}

bool KernelInfo::Read(const char* name, std::string* value) const {
  size_t size = 0;
  if (!Found(name, "string", api_.KernelInfoGetAttribute_string()(info_, name, nullptr, &size))) return false;
  value->assign(size, '\0');
  Check(api_, api_.KernelInfoGetAttribute_string()(info_, name, &(*value)[0], &size));
  value->resize(size > 0 ? size - 1 : 0);
  return true;
}

bool KernelInfo::Read(const char* name, std::vector<float>* values) const {
  size_t size = 0;
  if (!Found(name, "floats", api_.KernelInfoGetAttributeArray_float()(info_, name, nullptr, &size))) return false;
  values->assign(size, 0.0f);
  Check(api_, api_.KernelInfoGetAttributeArray_float()(info_, name, values->data(), &size));
  return true;
}

bool KernelInfo::Read(const char* name, std::vector<int64_t>* values) const {
  size_t size = 0;
  if (!Found(name, "ints", api_.KernelInfoGetAttributeArray_int64()(info_, name, nullptr, &size))) return false;
  values->assign(size, 0);
  Check(api_, api_.KernelInfoGetAttributeArray_int64()(info_, name, values->data(), &size));
  return true;
}

void UseLaterApi(const OrtApi& api, const OrtLaterApi* later) {
  api_with_later = later == nullptr ? nullptr : &api;
  later_api = later;
}

Shape ShapeOf(const OrtApi& api, const OrtValue* value) {
  if (&api == api_with_later) return ReferredShape(api, value);
  OrtTensorTypeAndShapeInfo* info = nullptr;
  Check(api, api.GetTensorTypeAndShape()(value, &info));
  const auto release = [&api](OrtTensorTypeAndShapeInfo* owned) { api.ReleaseTensorTypeAndShapeInfo()(owned); };
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(release)> owner(info, release);
  return DimensionsOf(api, info);
}

}  // namespace rnnqc::ort
