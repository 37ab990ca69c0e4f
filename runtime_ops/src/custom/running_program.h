#ifndef RNNQC_CUSTOM_RUNNING_PROGRAM_H_
#define RNNQC_CUSTOM_RUNNING_PROGRAM_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cells/driver/scratch.h"
#include "custom/program.h"
#include "kernels/kernel_table.h"

namespace rnnqc {

// Computes a program's calls of onnxruntime's operators during one run.
class OperatorCaller {
 public:
  virtual ~OperatorCaller() = default;
  // Call these before the first Call(index): they bind x [rows, columns] to the operand at `position`, and y [rows,
  // columns] to the result, the same memory at every step. Operands that are not bound are constants of the program.
  virtual void BindOperand(size_t index, size_t position, const void* x, NumberType type, int64_t rows,
                           int64_t columns) = 0;
  virtual void BindResult(size_t index, float* y, int64_t rows, int64_t columns) = 0;
  virtual void Call(size_t index) = 0;
};

// One call of a layer. States and the elements of inputs and outputs are [batch, columns of the value].
struct CustomArgs {
  int64_t time;   // at least 1
  int64_t batch;  // at least 1
  bool reverse;
  std::vector<const void*> inputs;    // [time, batch, columns]
  std::vector<const float*> initial;  // of each state
  std::vector<float*> final;          // null for those that are not wanted
  std::vector<float*> outputs;        // [time, batch, columns], or null
};

// A product of a program with a matrix whose numbers are stored less 128; products with one matrix share it.
struct ProgramProduct {
  std::shared_ptr<const PackedMatrix> matrix;
  std::vector<int32_t> start;  // first values of the sums, for the zero point of the left operand
  // For each column, the factor of the sum over a row's centred numbers that is added to the column's sum if the zero
  // points of the matrix are not all 128. Empty if they are.
  std::vector<int32_t> row_sums;
  int32_t zero_point = 0;  // of the left operand
};

// From one row of a value to the next, in numbers. Rows of integers have room for what products read and write.
inline int64_t RowStride(const ProgramValue& value) {
  const bool padded = value.type == NumberType::kU8 || value.type == NumberType::kI32;
  return padded ? RoundUp(value.columns, kBlockColumns) : value.columns;
}

// A program with the memory of one run.
class RunningProgram {
 public:
  // By value the memory of those of stage kOnce; by instruction the products.
  RunningProgram(const Program& program, const KernelTable& kernels, const std::vector<AlignedArray<uint8_t>>& once,
                 const std::vector<ProgramProduct>& products);

  // Computes the values of stage kOnce.
  void RunOnce();

  // Memory for so many steps whose values of stage kAhead are computed together.
  void VisitScratch(ScratchPieces& pieces, int64_t batch, int64_t steps);
  void Run(const CustomArgs& args, int64_t steps, OperatorCaller* caller);

 private:
  // The memory of a value; the rows of a step are `advance` bytes after those of the previous step.
  struct Place {
    uint8_t* data = nullptr;
    int64_t stride = 0;
    int64_t advance = 0;
  };

  void PlaceViews();
  void BindCalls();
  VectorOperand Operand(int32_t value, int64_t step) const;
  void RunStage(Stage stage, int64_t rows, int64_t step);
  void Execute(size_t index, int64_t rows, int64_t step);
  void Vector(const Instruction& instruction, int64_t rows, int64_t step) const;
  void Slice(const Instruction& instruction, int64_t rows, int64_t step) const;
  void Concat(const Instruction& instruction, int64_t rows, int64_t step) const;
  void Quantize(const Instruction& instruction, int64_t rows, int64_t step) const;
  void Multiply(size_t index, int64_t rows, int64_t step) const;
  void Take(const Instruction& instruction, int64_t rows, int64_t step) const;
  void Call(const Instruction& instruction, int64_t step);
  void Write(const CustomArgs& args, int64_t time, int64_t step) const;
  void KeepStates(int64_t step);
  // Copies rows without gaps.
  void CopyRows(int32_t value, int64_t step, int64_t rows, uint8_t* target) const;

  const Program& program_;
  const KernelTable& kernels_;
  const std::vector<ProgramProduct>& products_;
  std::vector<Place> places_;
  std::vector<uint8_t*> kept_;  // what states become, until all of them are read
  // By call and operand: where a copy of it stands at every step; null if it is read where it is.
  std::vector<std::vector<uint8_t*>> call_operands_;
  int64_t batch_ = 1;
  OperatorCaller* caller_ = nullptr;
};

}  // namespace rnnqc

#endif  // RNNQC_CUSTOM_RUNNING_PROGRAM_H_
