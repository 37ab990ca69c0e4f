#ifndef RNNQC_OPS_CELL_OPERATOR_H_
#define RNNQC_OPS_CELL_OPERATOR_H_

#include <string>
#include <vector>

#include "cells/driver/cell_run.h"
#include "ops/cell_inputs.h"
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
  const CellOperator* cell;
  std::string name;
};

// Everything but the kernel, of the operator itself and then of its aliases. Without shape inference the outputs have
// no shapes before they are computed.
//
// onnxruntime makes all of them anew for every session, and most of the time goes into types of inputs: 20 inputs of
// any type take 15 times as long as one variadic input. So aliases have one input, whose nodes have no gaps.
std::vector<RegisteredOperator> DescribeOperators(const ort::OrtApi* api, const CellOperator& cell, bool infers_shapes);

// A kernel has a constructor (api, KernelInfo, context for messages), api(), context() and Compute(OrtKernelContext*).
template <typename Kernel>
void SetKernel(RegisteredOperator* op) {
  op->CreateKernelV2 = [](const ort::OrtCustomOp* self, const ort::OrtApi* kernel_api, const ort::OrtKernelInfo* raw,
                          void** kernel) {
    const std::string name = static_cast<const RegisteredOperator*>(self)->cell->name;
    const ort::KernelInfo info(*kernel_api, raw);
    std::string context;
    ort::OrtStatus* status =
        ort::Guard(*kernel_api, name + ": ", [&] { context = name + " node \"" + info.NodeName() + "\": "; });
    if (status != nullptr) return status;
    return ort::Guard(*kernel_api, context, [&] { *kernel = new Kernel(*kernel_api, info, context); });
  };
  op->KernelComputeV2 = [](void* raw, ort::OrtKernelContext* context) {
    auto* kernel = static_cast<Kernel*>(raw);
    return ort::Guard(kernel->api(), kernel->context(), [&] { kernel->Compute(context); });
  };
  op->KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
}

// The operator and its aliases.
template <typename Kernel>
std::vector<RegisteredOperator> MakeOperators(const ort::OrtApi* api, const CellOperator& cell, bool infers_shapes) {
  std::vector<RegisteredOperator> ops = DescribeOperators(api, cell, infers_shapes);
  for (RegisteredOperator& op : ops) SetKernel<Kernel>(&op);
  return ops;
}

}  // namespace rnnqc

#endif  // RNNQC_OPS_CELL_OPERATOR_H_
