#ifndef RNNQC_ORT_SUPPORT_H_
#define RNNQC_ORT_SUPPORT_H_

#include <algorithm>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "ort_abi.h"

namespace rnnqc::ort {

// Dimensions without an allocation; negative ones are unknown.
class Shape {
 public:
  static constexpr size_t kMaxRank = 8;

  Shape() = default;
  // Throws std::invalid_argument beyond kMaxRank.
  explicit Shape(size_t rank) : rank_(rank) {
    if (rank > kMaxRank) FailRank(rank);
  }
  Shape(std::initializer_list<int64_t> dims) : Shape(dims.size()) { std::copy(dims.begin(), dims.end(), dims_); }

  size_t size() const { return rank_; }
  bool empty() const { return rank_ == 0; }
  int64_t* data() { return dims_; }
  const int64_t* data() const { return dims_; }
  int64_t operator[](size_t i) const { return dims_[i]; }

 private:
  [[noreturn]] static void FailRank(size_t rank);

  int64_t dims_[kMaxRank] = {};
  size_t rank_ = 0;
};

// Dimensions fit where either is not known.
inline bool Fits(const Shape& found, const Shape& expected) {
  bool fits = found.size() == expected.size();
  for (size_t i = 0; fits && i < found.size(); ++i) {
    fits = found[i] < 0 || expected[i] < 0 || found[i] == expected[i];
  }
  return fits;
}

// "[2, 3, ?]"
std::string ToText(const Shape& shape);
const char* ToText(ElementType type);

// Throws std::runtime_error with onnxruntime's message, and releases the status.
[[noreturn]] void Fail(const OrtApi& api, OrtStatus* status);

// Fails unless the status is null. Inline, as is what else a call does several times.
inline void Check(const OrtApi& api, OrtStatus* status) {
  if (status != nullptr) Fail(api, status);
}

// Releases the status; true if it was null.
bool Ok(const OrtApi& api, OrtStatus* status);

// Runs `body`; what it throws becomes a status that begins with `context`. No exception leaves it.
template <typename Body>
OrtStatus* Guard(const OrtApi& api, const std::string& context, const Body& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const std::exception& error) {
    try {
      return api.CreateStatus()(kInvalidArgument, (context + error.what()).c_str());
    } catch (...) {
      return api.CreateStatus()(kFail, error.what());
    }
  } catch (...) {
    return api.CreateStatus()(kFail, "unknown C++ exception in the rnnqc library");
  }
}

struct TensorType {
  ElementType element = kUndefined;
  bool ranked = false;
  Shape shape;
};

// Attributes and inputs of a node under construction. An absent optional attribute leaves the target unchanged.
class KernelInfo {
 public:
  KernelInfo(const OrtApi& api, const OrtKernelInfo* info) : api_(api), info_(info) {}

  std::string NodeName() const;
  size_t InputCount() const;
  size_t OutputCount() const;

  // The type of input or output `index`; false if it is absent.
  bool InputType(size_t index, TensorType* type) const;
  bool HasOutput(size_t index) const;

  const OrtKernelInfo* raw() const { return info_; }

  // Value of a constant input, or null.
  const OrtValue* ConstantInput(size_t index) const;

  // False if the attribute is absent; throws std::invalid_argument if it has another type.
  bool Read(const char* name, float* value) const;
  bool Read(const char* name, int64_t* value) const;
  bool Read(const char* name, std::string* value) const;
  bool Read(const char* name, std::vector<float>* values) const;
  bool Read(const char* name, std::vector<int64_t>* values) const;

 private:
  // False, after releasing `status`, if the attribute is absent.
  bool Found(const char* name, const char* expected, OrtStatus* status) const;

  const OrtApi& api_;
  const OrtKernelInfo* info_;
};

// Lets ShapeOf(api, ..) use an entry that allocates nothing. Before any kernel is created.
void UseLaterApi(const OrtApi& api, const OrtLaterApi* later);

Shape ShapeOf(const OrtApi& api, const OrtValue* value);

template <typename T>
T* DataOf(const OrtApi& api, const OrtValue* value) {
  void* data = nullptr;
  // There is no read-only accessor in this API version.
  Check(api, api.GetTensorMutableData()(const_cast<OrtValue*>(value), &data));
  return static_cast<T*>(data);
}

}  // namespace rnnqc::ort

#endif  // RNNQC_ORT_SUPPORT_H_
