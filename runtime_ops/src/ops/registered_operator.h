#ifndef RNNQC_OPS_REGISTERED_OPERATOR_H_
#define RNNQC_OPS_REGISTERED_OPERATOR_H_

#include <string>
#include <vector>

#include "cells/driver/cell_run.h"
#include "ort_support.h"

namespace rnnqc {

// Runs tasks on onnxruntime's threads.
class ContextParallel : public Parallel {
 public:
  ContextParallel(const ort::OrtApi& api, ort::OrtKernelContext* context) : api_(api), context_(context) {}
  void For(int64_t count, void (*task)(void* user, size_t index), void* user) override {
    ort::Check(api_, api_.KernelContext_ParallelFor()(context_, task, static_cast<size_t>(count), 0, user));
  }

 private:
  const ort::OrtApi& api_;
  ort::OrtKernelContext* context_;
};

struct RegisteredOperator : ort::OrtCustomOp {
  const ort::OrtApi* api;
  const void* description;  // of its kind, for the functions below
  std::string kind;         // what messages call it
  std::string name;
};

// The callbacks that onnxruntime requires of every operator; the caller adds inputs, outputs and the kernel.
RegisteredOperator DescribeOperator(const ort::OrtApi* api, const void* description, std::string kind,
                                    std::string name);

// The name of an alias, and its declaration to onnxruntime with one variadic input, which costs least.
std::string AliasName(const std::string& name, size_t number);
void SetVariadicInput(RegisteredOperator* op);

// One or more float32 tensors as outputs.
void SetVariadicFloatOutput(RegisteredOperator* op);

// An output's shape during shape inference.
class OutputShape {
 public:
  explicit OutputShape(const ort::OrtApi& api);
  ~OutputShape();
  OutputShape(const OutputShape&) = delete;
  OutputShape& operator=(const OutputShape&) = delete;

  // Dimensions are numbers, or names where they are negative.
  void Set(const ort::OrtShapeInferContext* context, size_t index, ort::Shape shape, std::vector<const char*> symbols,
           ort::ElementType type = ort::kFloat);

 private:
  const ort::OrtApi& api_;
  ort::OrtTensorTypeAndShapeInfo* info_ = nullptr;
};

// Throws std::invalid_argument for a node of a version of its operator that this library does not compute.
void CheckVersion(const ort::KernelInfo& info);

// A kernel has a constructor (api, KernelInfo, context for messages), api(), context() and Compute(OrtKernelContext*).
template <typename Kernel>
void SetKernel(RegisteredOperator* op) {
  op->CreateKernelV2 = [](const ort::OrtCustomOp* self, const ort::OrtApi* kernel_api, const ort::OrtKernelInfo* raw,
                          void** kernel) {
    const std::string name = static_cast<const RegisteredOperator*>(self)->kind;
    const ort::KernelInfo info(*kernel_api, raw);
    std::string context;
    ort::OrtStatus* status =
        ort::Guard(*kernel_api, name + ": ", [&] { context = name + " node \"" + info.NodeName() + "\": "; });
    if (status != nullptr) return status;
    return ort::Guard(*kernel_api, context, [&] {
      CheckVersion(info);
      *kernel = new Kernel(*kernel_api, info, context);
    });
  };
  op->KernelComputeV2 = [](void* raw, ort::OrtKernelContext* context) {
    auto* kernel = static_cast<Kernel*>(raw);
    return ort::Guard(kernel->api(), kernel->context(), [&] { kernel->Compute(context); });
  };
  op->KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
}

}  // namespace rnnqc

#endif  // RNNQC_OPS_REGISTERED_OPERATOR_H_
