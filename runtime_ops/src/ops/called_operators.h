#ifndef RNNQC_OPS_CALLED_OPERATORS_H_
#define RNNQC_OPS_CALLED_OPERATORS_H_

#include <cstdint>
#include <vector>

#include "custom/running_program.h"
#include "ort_support.h"

namespace rnnqc {

// onnxruntime's own operators that a program calls. Their results differ between versions and processors, and are
// always those of a node of the operator there.
class CalledOperators {
 public:
  // Throws std::invalid_argument for an operator that does not map each number to a number, or each row to a row.
  CalledOperators(const ort::OrtApi& api, const ort::KernelInfo& info, const Program& program);
  ~CalledOperators();
  CalledOperators(const CalledOperators&) = delete;
  CalledOperators& operator=(const CalledOperators&) = delete;

  const ort::OrtApi& api() const { return api_; }
  const ort::OrtOp* op(size_t index) const { return ops_[index]; }
  const ort::OrtMemoryInfo* memory() const { return memory_; }

 private:
  void Release();

  const ort::OrtApi& api_;
  ort::OrtMemoryInfo* memory_ = nullptr;
  std::vector<ort::OrtOp*> ops_;
};

// The calls of one run. `constants` are by call the operands that are constants, as onnxruntime holds them, and null
// for others.
class OperatorCalls final : public OperatorCaller {
 public:
  OperatorCalls(const CalledOperators& operators, const ort::OrtKernelContext* context,
                const std::vector<std::vector<const ort::OrtValue*>>& constants);
  ~OperatorCalls() override;
  OperatorCalls(const OperatorCalls&) = delete;
  OperatorCalls& operator=(const OperatorCalls&) = delete;

  void BindOperand(size_t index, size_t position, const void* x, NumberType type, int64_t rows,
                   int64_t columns) override;
  void BindResult(size_t index, float* y, int64_t rows, int64_t columns) override;
  void Call(size_t index) override;

 private:
  struct Values {
    std::vector<ort::OrtValue*> own;
    ort::OrtValue* y = nullptr;
    std::vector<const ort::OrtValue*> operands;
  };

  ort::OrtValue* Tensor(void* data, NumberType type, int64_t rows, int64_t columns) const;

  const CalledOperators& operators_;
  const ort::OrtKernelContext* context_;
  std::vector<Values> values_;
};

}  // namespace rnnqc

#endif  // RNNQC_OPS_CALLED_OPERATORS_H_
