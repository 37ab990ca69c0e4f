// Compares runtime_ops/src/ort_abi.h and benchmarks/native/ort_session_abi.h with onnxruntime's official C header; compiles if
// they agree:
//
//   c++ -std=c++17 -fsyntax-only -I runtime_ops/src -I $ONNXRUNTIME_INCLUDE_DIR scripts/check_ort_abi.cc

#include <onnxruntime_c_api.h>

#include <cstddef>
#include <type_traits>

#include "ort_abi.h"
// It includes ort_abi.h, which is here already, from whichever folder.
#include "../benchmarks/native/ort_session_abi.h"

namespace {

namespace own = rnnqc::ort;

// Signatures agree if every parameter and result does, counting pointers to opaque types and enumerations as equal
// among themselves.
template <typename T>
struct Shape {
  using type = std::conditional_t<std::is_enum_v<T>, int, T>;
};
template <typename T>
struct Shape<T*> {
  using type = std::conditional_t<std::is_class_v<std::remove_cv_t<T>> || std::is_enum_v<T>,
                                  std::conditional_t<std::is_const_v<T>, const void*, void*>, typename Shape<T>::type*>;
};
template <typename T>
struct Shape<T* const> : Shape<T*> {};
template <typename R, typename... A>
struct Shape<R (*)(A...)> {
  using type = typename Shape<R>::type (*)(typename Shape<A>::type...);
};
template <typename R, typename... A>
struct Shape<R (*)(A...) noexcept> : Shape<R (*)(A...)> {};
template <typename T>
using ShapeOf = typename Shape<T>::type;

#define RNNQC_CHECK(name, position, result, parameters)                                             \
  static_assert(offsetof(::OrtApi, name) == (position) * sizeof(void*), #name " stands elsewhere"); \
  static_assert(std::is_same_v<ShapeOf<decltype(::OrtApi::name)>, ShapeOf<result(*) parameters>>,   \
                #name " has another signature");
namespace entries {
using own::AllocatorType;
using own::ElementType;
using own::ErrorCode;
using own::MemoryType;
using own::OpAttrType;
using own::OrtCustomOp;
using own::OrtCustomOpDomain;
using own::OrtKernelContext;
using own::OrtKernelInfo;
using own::OrtMemoryInfo;
using own::OrtOp;
using own::OrtOpAttr;
using own::OrtSessionOptions;
using own::OrtShapeInferContext;
using own::OrtStatus;
using own::OrtTensorTypeAndShapeInfo;
using own::OrtTypeInfo;
using own::OrtValue;
RNNQC_ORT_API(RNNQC_CHECK)
#if ORT_API_VERSION >= 24
RNNQC_ORT_LATER_API(RNNQC_CHECK)
static_assert(own::kShapeReferenceVersion == 24, "the version with the later entries");
#endif
using own::LoggingLevel;
using own::OrtEnv;
using own::OrtRunOptions;
using own::OrtSession;
RNNQC_ORT_SESSION_API(RNNQC_CHECK)
static_assert(int{own::kLogFatal} == ORT_LOGGING_LEVEL_FATAL && int{own::kArenaAllocator} == OrtArenaAllocator,
              "logging levels and allocators");
}  // namespace entries

#define RNNQC_CHECK_MEMBER(name)                                                                                   \
  static_assert(offsetof(::OrtCustomOp, name) == offsetof(own::OrtCustomOp, name), #name " stands elsewhere");     \
  static_assert(std::is_same_v<ShapeOf<decltype(::OrtCustomOp::name)>, ShapeOf<decltype(own::OrtCustomOp::name)>>, \
                #name " has another signature");
RNNQC_CHECK_MEMBER(version)
RNNQC_CHECK_MEMBER(CreateKernel)
RNNQC_CHECK_MEMBER(GetName)
RNNQC_CHECK_MEMBER(GetExecutionProviderType)
RNNQC_CHECK_MEMBER(GetInputType)
RNNQC_CHECK_MEMBER(GetInputTypeCount)
RNNQC_CHECK_MEMBER(GetOutputType)
RNNQC_CHECK_MEMBER(GetOutputTypeCount)
RNNQC_CHECK_MEMBER(KernelCompute)
RNNQC_CHECK_MEMBER(KernelDestroy)
RNNQC_CHECK_MEMBER(GetInputCharacteristic)
RNNQC_CHECK_MEMBER(GetOutputCharacteristic)
RNNQC_CHECK_MEMBER(GetInputMemoryType)
RNNQC_CHECK_MEMBER(GetVariadicInputMinArity)
RNNQC_CHECK_MEMBER(GetVariadicInputHomogeneity)
RNNQC_CHECK_MEMBER(GetVariadicOutputMinArity)
RNNQC_CHECK_MEMBER(GetVariadicOutputHomogeneity)
RNNQC_CHECK_MEMBER(CreateKernelV2)
RNNQC_CHECK_MEMBER(KernelComputeV2)
RNNQC_CHECK_MEMBER(InferOutputShapeFn)
RNNQC_CHECK_MEMBER(GetStartVersion)
RNNQC_CHECK_MEMBER(GetEndVersion)

static_assert(offsetof(::OrtApiBase, GetApi) == offsetof(own::OrtApiBase, GetApi), "GetApi stands elsewhere");
static_assert(int{own::kFail} == ORT_FAIL && int{own::kInvalidArgument} == ORT_INVALID_ARGUMENT, "error codes");
static_assert(int{own::kUndefined} == ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED &&
                  int{own::kFloat} == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT &&
                  int{own::kUint8} == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 &&
                  int{own::kInt8} == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8 &&
                  int{own::kInt32} == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
              "element types");
static_assert(int{own::kRequired} == INPUT_OUTPUT_REQUIRED && int{own::kOptional} == INPUT_OUTPUT_OPTIONAL,
              "characteristics");
static_assert(int{own::kMemoryDefault} == OrtMemTypeDefault, "memory types");
static_assert(int{own::kAttributeInt} == ORT_OP_ATTR_INT, "attribute types");

}  // namespace
