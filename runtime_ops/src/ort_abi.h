#ifndef RNNQC_ORT_ABI_H_
#define RNNQC_ORT_ABI_H_

// The part of onnxruntime's C ABI that this library uses, declared by hand: no package registry carries the headers.
// The ABI only ever grows at its end, so that positions are final. scripts/check_ort_abi.cc compares this file with
// the official headers.

#include <cstddef>
#include <cstdint>

namespace rnnqc::ort {

// Lowest version with shape inference for custom operators. OrtCustomOp below has the members of this version; to
// claim a later one would make onnxruntime read beyond its end.
constexpr uint32_t kApiVersion = 17;

struct OrtCustomOp;
struct OrtCustomOpDomain;
struct OrtKernelContext;
struct OrtKernelInfo;
struct OrtMemoryInfo;
struct OrtOp;
struct OrtOpAttr;
struct OrtSessionOptions;
struct OrtShapeInferContext;
struct OrtStatus;
struct OrtTensorTypeAndShapeInfo;
struct OrtTypeInfo;
struct OrtValue;

enum ErrorCode : int { kFail = 1, kInvalidArgument = 2 };
enum ElementType : int {
  kUndefined = 0,
  kFloat = 1,
  kUint8 = 2,
  kInt8 = 3,
  kInt16 = 5,
  kInt32 = 6,
  kBool = 9,
  kDouble = 11
};
enum Characteristic : int { kRequired = 0, kOptional = 1, kVariadic = 2 };
enum OpAttrType : int { kAttributeInt = 1, kAttributeInts = 2, kAttributeFloat = 3, kAttributeString = 5 };
enum AllocatorType : int { kDeviceAllocator = 0, kArenaAllocator = 1 };
enum MemoryType : int { kMemoryDefault = 0 };

// X(name, position in OrtApi, result, parameters)
#define RNNQC_ORT_API(X)                                                                                            \
  X(CreateStatus, 0, OrtStatus*, (ErrorCode, const char*))                                                          \
  X(GetErrorMessage, 2, const char*, (const OrtStatus*))                                                            \
  X(CreateCustomOpDomain, 26, OrtStatus*, (const char*, OrtCustomOpDomain**))                                       \
  X(CustomOpDomain_Add, 27, OrtStatus*, (OrtCustomOpDomain*, const OrtCustomOp*))                                   \
  X(AddCustomOpDomain, 28, OrtStatus*, (OrtSessionOptions*, OrtCustomOpDomain*))                                    \
  X(CreateTensorWithDataAsOrtValue, 49, OrtStatus*,                                                                 \
    (const OrtMemoryInfo*, void*, size_t, const int64_t*, size_t, ElementType, OrtValue**))                         \
  X(GetTensorMutableData, 51, OrtStatus*, (OrtValue*, void**))                                                      \
  X(CastTypeInfoToTensorInfo, 55, OrtStatus*, (const OrtTypeInfo*, const OrtTensorTypeAndShapeInfo**))              \
  X(CreateTensorTypeAndShapeInfo, 57, OrtStatus*, (OrtTensorTypeAndShapeInfo**))                                    \
  X(SetTensorElementType, 58, OrtStatus*, (OrtTensorTypeAndShapeInfo*, ElementType))                                \
  X(SetDimensions, 59, OrtStatus*, (OrtTensorTypeAndShapeInfo*, const int64_t*, size_t))                            \
  X(GetTensorElementType, 60, OrtStatus*, (const OrtTensorTypeAndShapeInfo*, ElementType*))                         \
  X(GetDimensionsCount, 61, OrtStatus*, (const OrtTensorTypeAndShapeInfo*, size_t*))                                \
  X(GetDimensions, 62, OrtStatus*, (const OrtTensorTypeAndShapeInfo*, int64_t*, size_t))                            \
  X(GetSymbolicDimensions, 63, OrtStatus*, (const OrtTensorTypeAndShapeInfo*, const char**, size_t))                \
  X(GetTensorTypeAndShape, 65, OrtStatus*, (const OrtValue*, OrtTensorTypeAndShapeInfo**))                          \
  X(CreateCpuMemoryInfo, 69, OrtStatus*, (AllocatorType, MemoryType, OrtMemoryInfo**))                              \
  X(KernelInfoGetAttribute_float, 85, OrtStatus*, (const OrtKernelInfo*, const char*, float*))                      \
  X(KernelInfoGetAttribute_int64, 86, OrtStatus*, (const OrtKernelInfo*, const char*, int64_t*))                    \
  X(KernelInfoGetAttribute_string, 87, OrtStatus*, (const OrtKernelInfo*, const char*, char*, size_t*))             \
  X(KernelContext_GetInputCount, 88, OrtStatus*, (const OrtKernelContext*, size_t*))                                \
  X(KernelContext_GetOutputCount, 89, OrtStatus*, (const OrtKernelContext*, size_t*))                               \
  X(KernelContext_GetInput, 90, OrtStatus*, (const OrtKernelContext*, size_t, const OrtValue**))                    \
  X(KernelContext_GetOutput, 91, OrtStatus*, (OrtKernelContext*, size_t, const int64_t*, size_t, OrtValue**))       \
  X(ReleaseStatus, 93, void, (OrtStatus*))                                                                          \
  X(ReleaseMemoryInfo, 94, void, (OrtMemoryInfo*))                                                                  \
  X(ReleaseValue, 96, void, (OrtValue*))                                                                            \
  X(ReleaseTypeInfo, 98, void, (OrtTypeInfo*))                                                                      \
  X(ReleaseTensorTypeAndShapeInfo, 99, void, (OrtTensorTypeAndShapeInfo*))                                          \
  X(KernelInfoGetAttributeArray_float, 162, OrtStatus*, (const OrtKernelInfo*, const char*, float*, size_t*))       \
  X(KernelInfoGetAttributeArray_int64, 163, OrtStatus*, (const OrtKernelInfo*, const char*, int64_t*, size_t*))     \
  X(CreateOpAttr, 211, OrtStatus*, (const char*, const void*, int, OpAttrType, OrtOpAttr**))                        \
  X(ReleaseOpAttr, 212, void, (OrtOpAttr*))                                                                         \
  X(CreateOp, 213, OrtStatus*,                                                                                      \
    (const OrtKernelInfo*, const char*, const char*, int, const char**, const ElementType*, int,                    \
     const OrtOpAttr* const*, int, int, int, OrtOp**))                                                              \
  X(InvokeOp, 214, OrtStatus*,                                                                                      \
    (const OrtKernelContext*, const OrtOp*, const OrtValue* const*, int, OrtValue* const*, int))                    \
  X(ReleaseOp, 215, void, (OrtOp*))                                                                                 \
  X(KernelInfo_GetInputCount, 230, OrtStatus*, (const OrtKernelInfo*, size_t*))                                     \
  X(KernelInfo_GetOutputCount, 231, OrtStatus*, (const OrtKernelInfo*, size_t*))                                    \
  X(KernelInfo_GetInputTypeInfo, 234, OrtStatus*, (const OrtKernelInfo*, size_t, OrtTypeInfo**))                    \
  X(KernelInfo_GetOutputTypeInfo, 235, OrtStatus*, (const OrtKernelInfo*, size_t, OrtTypeInfo**))                   \
  X(HasSessionConfigEntry, 237, OrtStatus*, (const OrtSessionOptions*, const char*, int*))                          \
  X(GetSessionConfigEntry, 238, OrtStatus*, (const OrtSessionOptions*, const char*, char*, size_t*))                \
  X(KernelInfo_GetNodeName, 244, OrtStatus*, (const OrtKernelInfo*, char*, size_t*))                                \
  X(KernelInfoGetConstantInput_tensor, 249, OrtStatus*, (const OrtKernelInfo*, size_t, int*, const OrtValue**))     \
  X(ShapeInferContext_GetInputCount, 267, OrtStatus*, (const OrtShapeInferContext*, size_t*))                       \
  /* The shape object stays the context's. */                                                                       \
  X(ShapeInferContext_GetInputTypeShape, 268, OrtStatus*,                                                           \
    (const OrtShapeInferContext*, size_t, OrtTensorTypeAndShapeInfo**))                                             \
  X(ShapeInferContext_GetAttribute, 269, OrtStatus*, (const OrtShapeInferContext*, const char*, const OrtOpAttr**)) \
  /* The context copies the shape object. */                                                                        \
  X(ShapeInferContext_SetOutputTypeShape, 270, OrtStatus*,                                                          \
    (const OrtShapeInferContext*, size_t, const OrtTensorTypeAndShapeInfo*))                                        \
  X(SetSymbolicDimensions, 271, OrtStatus*, (OrtTensorTypeAndShapeInfo*, const char**, size_t))                     \
  X(ReadOpAttr, 272, OrtStatus*, (const OrtOpAttr*, OpAttrType, void*, size_t, size_t*))                            \
  X(KernelContext_ParallelFor, 274, OrtStatus*,                                                                     \
    (const OrtKernelContext*, void (*)(void*, size_t), size_t, size_t, void*))

struct OrtApi {
  const void* entries[275];  // version 17 has more; none of those is used

#define RNNQC_ORT_ENTRY(name, position, result, parameters) \
  auto name() const { return reinterpret_cast<result(*) parameters>(const_cast<void*>(entries[position])); }
  RNNQC_ORT_API(RNNQC_ORT_ENTRY)
#undef RNNQC_ORT_ENTRY
};

// Entries of a later version, for use where the runtime has it: GetApi must not be asked for a version that it has not,
// which it would complain about on standard error.
constexpr uint32_t kShapeReferenceVersion = 24;

// X(name, position in OrtApi, result, parameters)
#define RNNQC_ORT_LATER_API(X)                                  \
  /* The dimensions stay the value's. */                        \
  X(GetTensorElementTypeAndShapeDataReference, 414, OrtStatus*, \
    (const OrtValue*, ElementType*, const int64_t**, size_t*))

struct OrtLaterApi {
  const void* entries[415];

#define RNNQC_ORT_ENTRY(name, position, result, parameters) \
  auto name() const { return reinterpret_cast<result(*) parameters>(const_cast<void*>(entries[position])); }
  RNNQC_ORT_LATER_API(RNNQC_ORT_ENTRY)
#undef RNNQC_ORT_ENTRY
};

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  ElementType (*GetInputType)(const OrtCustomOp*, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  ElementType (*GetOutputType)(const OrtCustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void*, OrtKernelContext*);
  void (*KernelDestroy)(void*);
  Characteristic (*GetInputCharacteristic)(const OrtCustomOp*, size_t);
  Characteristic (*GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  MemoryType (*GetInputMemoryType)(const OrtCustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void**);
  OrtStatus* (*KernelComputeV2)(void*, OrtKernelContext*);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int (*GetStartVersion)(const OrtCustomOp*);
  int (*GetEndVersion)(const OrtCustomOp*);
};

static_assert(sizeof(OrtCustomOp) == 22 * sizeof(void*), "OrtCustomOp of API version 17 has 22 words");

}  // namespace rnnqc::ort

#endif  // RNNQC_ORT_ABI_H_
