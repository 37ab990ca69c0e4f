#ifndef RNNQC_CUSTOM_PROGRAM_H_
#define RNNQC_CUSTOM_PROGRAM_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/common/vector.h"

namespace rnnqc {

// The step of a custom cell as a list of instructions, which docs/quant_custom_cell.md describes.

enum class NumberType : uint8_t { kF32, kF64, kI32, kU8, kBool };

int64_t SizeOf(NumberType type);
const char* NameOf(NumberType type);

// kView: columns side by side of another value, which need no memory of their own.
enum class ValueKind : uint8_t { kState, kInput, kConstant, kMatrix, kNumber, kMade, kView };

// When a value is computed: it depends on nothing, on the inputs of the loop alone, or on the previous step.
enum class Stage : uint8_t { kOnce, kAhead, kStep };

// Rows of numbers: one for each row of the batch, or one for all of them.
struct ProgramValue {
  NumberType type;
  ValueKind kind;
  Stage stage;
  bool per_row;
  int64_t columns;
  int64_t depth;    // K of a matrix [K, columns]
  uint64_t number;  // bits of a number
};

enum class Action : uint8_t { kVector, kSlice, kConcat, kQuantize, kProduct, kTake, kCall };

enum class AttributeKind : uint8_t { kInt, kInts, kFloat, kString };

struct CallAttribute {
  std::string name;
  AttributeKind kind;
  std::vector<int64_t> numbers;  // one of kInt
  float real;
  std::string text;
};

// One of onnxruntime's own operators.
struct CalledOperator {
  std::string name;
  int version;
  std::vector<CallAttribute> attributes;
};

struct Instruction {
  Action action;
  VectorOp vector;
  int32_t y;
  std::vector<int32_t> operands;
  int64_t first;  // of kSlice, with `step` from column to column
  int64_t step;
  size_t call;  // of kCall: index into Program::calls
};

struct Program {
  std::vector<ProgramValue> values;
  std::vector<Instruction> instructions;
  std::vector<CalledOperator> calls;
  // Indices of values, in the order of the node's inputs: states, inputs of the loop, constants and matrices.
  std::vector<int32_t> states;
  std::vector<int32_t> inputs;
  std::vector<int32_t> constants;
  std::vector<int32_t> next;     // what each state becomes
  std::vector<int32_t> outputs;  // of every step

  const ProgramValue& value(int32_t index) const { return values[static_cast<size_t>(index)]; }
};

constexpr int64_t kMaxProgramColumns = 1 << 20;

// Throws std::invalid_argument, with the line number, for an invalid program.
Program ParseProgram(const std::string& text);

}  // namespace rnnqc

#endif  // RNNQC_CUSTOM_PROGRAM_H_
