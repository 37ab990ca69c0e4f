#include "custom/running_program.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "cells/driver/matmul.h"

namespace rnnqc {
namespace {

size_t Index(int32_t value) { return static_cast<size_t>(value); }

}  // namespace

RunningProgram::RunningProgram(const Program& program, const KernelTable& kernels,
                               const std::vector<AlignedArray<uint8_t>>& once,
                               const std::vector<ProgramProduct>& products)
    : program_(program),
      kernels_(kernels),
      products_(products),
      places_(program.values.size()),
      kept_(program.states.size()),
      call_operands_(program.calls.size()) {
  for (size_t i = 0; i < places_.size(); ++i) {
    // Only RunOnce writes there.
    if (once[i].size() > 0) places_[i].data = const_cast<uint8_t*>(once[i].data());
  }
}

void RunningProgram::RunOnce() { RunStage(Stage::kOnce, 1, 0); }

void RunningProgram::VisitScratch(ScratchPieces& pieces, int64_t batch, int64_t steps) {
  batch_ = batch;
  for (size_t i = 0; i < places_.size(); ++i) {
    const ProgramValue& value = program_.values[i];
    if (!value.per_row) continue;
    const int64_t size = SizeOf(value.type);
    places_[i].stride = RowStride(value);
    places_[i].advance = value.stage == Stage::kAhead ? batch * places_[i].stride * size : 0;
    if (value.kind == ValueKind::kInput || value.kind == ValueKind::kView) continue;
    const int64_t rows = value.stage == Stage::kAhead ? steps * batch : batch;
    pieces(places_[i].data, rows * places_[i].stride * size);
  }
  for (size_t i = 0; i < kept_.size(); ++i) {
    pieces(kept_[i], batch * program_.value(program_.states[i]).columns * SizeOf(NumberType::kF32));
  }
  for (const Instruction& each : program_.instructions) {
    if (each.action != Action::kCall) continue;
    std::vector<uint8_t*>& copies = call_operands_[each.call];
    copies.resize(each.operands.size());
    for (size_t i = 0; i < copies.size(); ++i) {
      const ProgramValue& value = program_.value(each.operands[i]);
      if (value.per_row) pieces(copies[i], batch * value.columns * SizeOf(value.type));
    }
  }
}

void RunningProgram::PlaceViews() {
  for (const Instruction& each : program_.instructions) {
    if (program_.value(each.y).kind != ValueKind::kView) continue;
    Place& view = places_[Index(each.y)];
    view = places_[Index(each.operands[0])];
    view.data += each.first * SizeOf(program_.value(each.y).type);
  }
}

void RunningProgram::BindCalls() {
  for (const Instruction& each : program_.instructions) {
    if (each.action != Action::kCall) continue;
    for (size_t i = 0; i < each.operands.size(); ++i) {
      const ProgramValue& value = program_.value(each.operands[i]);
      if (!value.per_row) continue;
      const Place& place = places_[Index(each.operands[i])];
      uint8_t*& copy = call_operands_[each.call][i];
      if (place.advance == 0 && (batch_ == 1 || place.stride == value.columns)) copy = nullptr;
      caller_->BindOperand(each.call, i, copy == nullptr ? place.data : copy, value.type, batch_, value.columns);
    }
    float* y = reinterpret_cast<float*>(places_[Index(each.y)].data);
    caller_->BindResult(each.call, y, batch_, program_.value(each.y).columns);
  }
}

void RunningProgram::Run(const CustomArgs& args, int64_t steps, OperatorCaller* caller) {
  caller_ = caller;
  for (size_t i = 0; i < program_.states.size(); ++i) {
    const int32_t state = program_.states[i];
    std::memcpy(places_[Index(state)].data, args.initial[i],
                static_cast<size_t>(batch_ * program_.value(state).columns) * sizeof(float));
  }
  for (int64_t done = 0; done < args.time; done += steps) {
    const int64_t count = std::min(steps, args.time - done);
    const int64_t first = args.reverse ? args.time - done - count : done;
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      const ProgramValue& value = program_.value(program_.inputs[i]);
      const int64_t row = value.columns * SizeOf(value.type);
      Place& place = places_[Index(program_.inputs[i])];
      // Nothing writes there.
      place.data = static_cast<uint8_t*>(const_cast<void*>(args.inputs[i])) + first * batch_ * row;
      place.stride = value.columns;
      place.advance = batch_ * row;
    }
    PlaceViews();
    if (done == 0) BindCalls();
    RunStage(Stage::kAhead, count * batch_, 0);
    for (int64_t k = 0; k < count; ++k) {
      const int64_t step = args.reverse ? count - 1 - k : k;
      RunStage(Stage::kStep, batch_, step);
      Write(args, first + step, step);
      KeepStates(step);
    }
  }
  for (size_t i = 0; i < program_.states.size(); ++i) {
    if (args.final[i] == nullptr) continue;
    CopyRows(program_.states[i], 0, batch_, reinterpret_cast<uint8_t*>(args.final[i]));
  }
}

VectorOperand RunningProgram::Operand(int32_t value, int64_t step) const {
  const Place& place = places_[Index(value)];
  return {place.data + step * place.advance, place.stride, program_.value(value).columns == 1};
}

void RunningProgram::RunStage(Stage stage, int64_t rows, int64_t step) {
  for (size_t i = 0; i < program_.instructions.size(); ++i) {
    const ProgramValue& made = program_.value(program_.instructions[i].y);
    if (made.stage == stage && made.kind == ValueKind::kMade) Execute(i, rows, step);
  }
}

void RunningProgram::Execute(size_t index, int64_t rows, int64_t step) {
  const Instruction& instruction = program_.instructions[index];
  switch (instruction.action) {
    case Action::kVector:
      return Vector(instruction, rows, step);
    case Action::kSlice:
      return Slice(instruction, rows, step);
    case Action::kConcat:
      return Concat(instruction, rows, step);
    case Action::kQuantize:
      return Quantize(instruction, rows, step);
    case Action::kProduct:
      return Multiply(index, rows, step);
    case Action::kTake:
      return Take(instruction, rows, step);
    case Action::kCall:
      return Call(instruction, step);
  }
}

void RunningProgram::Vector(const Instruction& instruction, int64_t rows, int64_t step) const {
  const std::vector<int32_t>& operands = instruction.operands;
  VectorArgs args{};
  args.op = instruction.vector;
  args.rows = rows;
  const bool narrows = args.op == VectorOp::kLargestF32;
  args.n = program_.value(narrows ? operands[0] : instruction.y).columns;
  args.a = Operand(operands[0], step);
  if (operands.size() > 1) args.b = Operand(operands[1], step);
  if (operands.size() > 2) args.c = Operand(operands[2], step);
  args.y = places_[Index(instruction.y)].data;
  args.y_stride = places_[Index(instruction.y)].stride;
  kernels_.vector(args);
}

void RunningProgram::Slice(const Instruction& instruction, int64_t rows, int64_t step) const {
  const VectorOperand a = Operand(instruction.operands[0], step);
  const Place& y = places_[Index(instruction.y)];
  const int64_t size = SizeOf(program_.value(instruction.y).type);
  const int64_t columns = program_.value(instruction.y).columns;
  for (int64_t row = 0; row < rows; ++row) {
    const uint8_t* source = static_cast<const uint8_t*>(a.data) + (row * a.stride + instruction.first) * size;
    uint8_t* target = y.data + row * y.stride * size;
    for (int64_t i = 0; i < columns; ++i) {
      std::memcpy(target + i * size, source + i * instruction.step * size, static_cast<size_t>(size));
    }
  }
}

void RunningProgram::Concat(const Instruction& instruction, int64_t rows, int64_t step) const {
  const Place& y = places_[Index(instruction.y)];
  const int64_t size = SizeOf(program_.value(instruction.y).type);
  int64_t column = 0;
  for (const int32_t operand : instruction.operands) {
    const VectorOperand a = Operand(operand, step);
    const int64_t columns = program_.value(operand).columns;
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(y.data + (row * y.stride + column) * size,
                  static_cast<const uint8_t*>(a.data) + row * a.stride * size, static_cast<size_t>(columns * size));
    }
    column += columns;
  }
}

void RunningProgram::Quantize(const Instruction& instruction, int64_t rows, int64_t step) const {
  const VectorOperand x = Operand(instruction.operands[0], step);
  const VectorOperand scale = Operand(instruction.operands[1], step);
  const int32_t zero = *places_[Index(instruction.operands[2])].data;
  const Place& y = places_[Index(instruction.y)];
  const int64_t columns = program_.value(instruction.y).columns;
  for (int64_t row = 0; row < rows; ++row) {
    const float* numbers = static_cast<const float*>(x.data) + row * x.stride;
    const float of_row = static_cast<const float*>(scale.data)[row * scale.stride];
    kernels_.quantize_row(numbers, columns, of_row, zero, y.data + row * y.stride);
  }
}

void RunningProgram::Multiply(size_t index, int64_t rows, int64_t step) const {
  const Instruction& instruction = program_.instructions[index];
  const ProgramProduct& product = products_[index];
  const VectorOperand a = Operand(instruction.operands[0], step);
  const uint8_t* numbers = static_cast<const uint8_t*>(a.data);
  const Place& y = places_[Index(instruction.y)];
  int32_t* sums = reinterpret_cast<int32_t*>(y.data);
  const int64_t columns = program_.value(instruction.y).columns;
  RecurrentArgs args{};
  args.matmul = Matmul(*product.matrix, numbers, a.stride, rows, 0, ColumnBlockCount(columns, 1));
  args.matmul.start = product.start.data();
  args.acc = sums;
  args.acc_stride = y.stride;
  MultiplyRows(kernels_, *product.matrix, args);
  if (product.row_sums.empty()) return;
  const int64_t depth = product.matrix->k;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t sum = -depth * product.zero_point;
    for (int64_t i = 0; i < depth; ++i) sum += numbers[row * a.stride + i];
    const uint32_t centred = static_cast<uint32_t>(sum);
    int32_t* of_row = sums + row * y.stride;
    for (int64_t i = 0; i < columns; ++i) {
      const uint32_t more = static_cast<uint32_t>(product.row_sums[static_cast<size_t>(i)]) * centred;
      of_row[i] = static_cast<int32_t>(static_cast<uint32_t>(of_row[i]) + more);
    }
  }
}

void RunningProgram::Take(const Instruction& instruction, int64_t rows, int64_t step) const {
  const float* table = reinterpret_cast<const float*>(places_[Index(instruction.operands[0])].data);
  const int64_t entries = program_.value(instruction.operands[0]).columns;
  const VectorOperand index = Operand(instruction.operands[1], step);
  const Place& y = places_[Index(instruction.y)];
  const int64_t columns = program_.value(instruction.y).columns;
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t* from = static_cast<const int32_t*>(index.data) + row * index.stride;
    float* target = reinterpret_cast<float*>(y.data) + row * y.stride;
    for (int64_t i = 0; i < columns; ++i) {
      const int64_t entry = from[i] < 0 ? from[i] + entries : from[i];
      if (entry < 0 || entry >= entries) {
        throw std::invalid_argument("index " + std::to_string(from[i]) + " of a table of " + std::to_string(entries) +
                                    " entries");
      }
      target[i] = table[entry];
    }
  }
}

void RunningProgram::Call(const Instruction& instruction, int64_t step) {
  const std::vector<uint8_t*>& copies = call_operands_[instruction.call];
  for (size_t i = 0; i < copies.size(); ++i) {
    if (copies[i] != nullptr) CopyRows(instruction.operands[i], step, batch_, copies[i]);
  }
  caller_->Call(instruction.call);
}

void RunningProgram::Write(const CustomArgs& args, int64_t time, int64_t step) const {
  for (size_t i = 0; i < program_.outputs.size(); ++i) {
    if (args.outputs[i] == nullptr) continue;
    float* target = args.outputs[i] + time * batch_ * program_.value(program_.outputs[i]).columns;
    CopyRows(program_.outputs[i], step, batch_, reinterpret_cast<uint8_t*>(target));
  }
}

void RunningProgram::KeepStates(int64_t step) {
  // A state may become the old value of another one.
  for (size_t i = 0; i < kept_.size(); ++i) CopyRows(program_.next[i], step, batch_, kept_[i]);
  for (size_t i = 0; i < kept_.size(); ++i) {
    const int32_t state = program_.states[i];
    std::memcpy(places_[Index(state)].data, kept_[i],
                static_cast<size_t>(batch_ * program_.value(state).columns) * sizeof(float));
  }
}

void RunningProgram::CopyRows(int32_t value, int64_t step, int64_t rows, uint8_t* target) const {
  const VectorOperand source = Operand(value, step);
  const int64_t size = SizeOf(program_.value(value).type);
  const int64_t row_bytes = program_.value(value).columns * size;
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(target + row * row_bytes, static_cast<const uint8_t*>(source.data) + row * source.stride * size,
                static_cast<size_t>(row_bytes));
  }
}

}  // namespace rnnqc
