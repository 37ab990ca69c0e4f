#include "custom/program.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <sstream>
#include <stdexcept>

namespace rnnqc {
namespace {

constexpr const char* kTypeNames[] = {"f32", "f64", "i32", "u8", "bool"};
constexpr size_t kMaxValues = 1 << 16;

struct VectorWord {
  const char* word;
  NumberType operand;
  NumberType result;
  size_t count;
  VectorOp op;
};

constexpr NumberType kF32 = NumberType::kF32;
constexpr NumberType kF64 = NumberType::kF64;
constexpr NumberType kI32 = NumberType::kI32;
constexpr NumberType kU8 = NumberType::kU8;

// Vector operations by word and the type of the first operand.
constexpr VectorWord kVectorWords[] = {
    {"add", kF32, kF32, 2, VectorOp::kAddF32},
    {"sub", kF32, kF32, 2, VectorOp::kSubF32},
    {"mul", kF32, kF32, 2, VectorOp::kMulF32},
    {"div", kF32, kF32, 2, VectorOp::kDivF32},
    {"less", kF32, NumberType::kBool, 2, VectorOp::kLessF32},
    {"add", kF64, kF64, 2, VectorOp::kAddF64},
    {"sub", kF64, kF64, 2, VectorOp::kSubF64},
    {"mul", kF64, kF64, 2, VectorOp::kMulF64},
    {"div", kF64, kF64, 2, VectorOp::kDivF64},
    {"add", kI32, kI32, 2, VectorOp::kAddI32},
    {"sub", kI32, kI32, 2, VectorOp::kSubI32},
    {"mul", kI32, kI32, 2, VectorOp::kMulI32},
    {"max", kI32, kI32, 2, VectorOp::kMaxI32},
    {"min", kI32, kI32, 2, VectorOp::kMinI32},
    {"neg", kF32, kF32, 1, VectorOp::kNegF32},
    {"abs", kF32, kF32, 1, VectorOp::kAbsF32},
    {"floor", kF32, kF32, 1, VectorOp::kFloorF32},
    {"ceil", kF32, kF32, 1, VectorOp::kCeilF32},
    {"round", kF32, kF32, 1, VectorOp::kRoundF32},
    {"largest", kF32, kF32, 1, VectorOp::kLargestF32},
    {"to_i32", kF32, kI32, 1, VectorOp::kF32ToI32},
    {"to_u8", kF32, kU8, 1, VectorOp::kF32ToU8},
    {"to_f64", kF32, kF64, 1, VectorOp::kF32ToF64},
    {"to_f32", kF64, kF32, 1, VectorOp::kF64ToF32},
    {"to_f32", kI32, kF32, 1, VectorOp::kI32ToF32},
    {"to_f64", kI32, kF64, 1, VectorOp::kI32ToF64},
    {"to_u8", kI32, kU8, 1, VectorOp::kI32ToU8},
    {"to_f32", kU8, kF32, 1, VectorOp::kU8ToF32},
    {"to_i32", kU8, kI32, 1, VectorOp::kU8ToI32},
};

[[noreturn]] void Fail(const std::string& what) { throw std::invalid_argument(what); }

int64_t ToNumber(const std::string& word) {
  char* end = nullptr;
  const long long value = std::strtoll(word.c_str(), &end, 10);
  if (word.empty() || *end != '\0') Fail("\"" + word + "\" is no number");
  return value;
}

uint64_t ToBits(const std::string& word) {
  char* end = nullptr;
  const unsigned long long value = std::strtoull(word.c_str(), &end, 16);
  if (word.empty() || word.size() > 16 || *end != '\0') Fail("\"" + word + "\" is no hexadecimal number");
  return value;
}

class Parser {
 public:
  Program Parse(const std::string& text) {
    std::istringstream lines(text);
    std::string line;
    for (int64_t number = 1; std::getline(lines, line); ++number) {
      std::istringstream words(line);
      words_.clear();
      for (std::string word; words >> word;) words_.push_back(word);
      if (words_.empty()) continue;
      try {
        Line();
      } catch (const std::invalid_argument& error) {
        Fail("line " + std::to_string(number) + " (\"" + line + "\"): " + error.what());
      }
    }
    if (program_.states.empty()) Fail("it has no state");
    if (program_.inputs.empty()) Fail("it has no input");
    if (program_.next.size() != program_.states.size()) {
      Fail("it says what " + std::to_string(program_.next.size()) + " of " + std::to_string(program_.states.size()) +
           " states become");
    }
    return std::move(program_);
  }

 private:
  const std::string& Word(size_t index) const {
    if (index >= words_.size()) Fail("a word is missing");
    return words_[index];
  }

  void Count(size_t count) const {
    if (words_.size() != count) {
      Fail("expected " + std::to_string(count) + " words, found " + std::to_string(words_.size()));
    }
  }

  NumberType Type(size_t index) const {
    for (size_t i = 0; i < std::size(kTypeNames); ++i) {
      if (Word(index) == kTypeNames[i]) return static_cast<NumberType>(i);
    }
    Fail("\"" + Word(index) + "\" is no type");
  }

  int64_t Size(size_t index, int64_t least, int64_t most) const {
    const int64_t value = ToNumber(Word(index));
    if (value < least || value > most) {
      Fail(Word(index) + " is not " + std::to_string(least) + " .. " + std::to_string(most));
    }
    return value;
  }

  int32_t Operand(size_t index) const {
    const int64_t last = static_cast<int64_t>(program_.values.size()) - 1;
    if (last < 0) Fail("there is no value yet");
    return static_cast<int32_t>(Size(index, 0, last));
  }

  const ProgramValue& ValueOf(int32_t index) const {
    const ProgramValue& value = program_.value(index);
    if (value.kind == ValueKind::kMatrix) Fail("value " + std::to_string(index) + " is a matrix");
    return value;
  }

  int32_t Operand(size_t index, NumberType type) const {
    const int32_t operand = Operand(index);
    const ProgramValue& value = ValueOf(operand);
    if (value.type != type) {
      Fail("value " + std::to_string(operand) + " is " + NameOf(value.type) + ", expected " + NameOf(type));
    }
    return operand;
  }

  int32_t OneColumn(size_t index, NumberType type) const {
    const int32_t operand = Operand(index, type);
    if (ValueOf(operand).columns != 1) Fail("value " + std::to_string(operand) + " has several columns");
    return operand;
  }

  int32_t Add(NumberType type, ValueKind kind, Stage stage, bool per_row, int64_t columns) {
    if (program_.values.size() >= kMaxValues) Fail("there are too many values");
    program_.values.push_back({type, kind, stage, per_row, columns, 0, 0});
    return static_cast<int32_t>(program_.values.size()) - 1;
  }

  // The result of `instruction` has the stage and the rows of its operands.
  Instruction& Make(Action action, NumberType type, int64_t columns, std::vector<int32_t> operands) {
    Stage stage = action == Action::kCall ? Stage::kStep : Stage::kOnce;
    bool per_row = action == Action::kCall;
    for (const int32_t operand : operands) {
      stage = std::max(stage, program_.value(operand).stage);
      per_row = per_row || program_.value(operand).per_row;
    }
    const int32_t y = Add(type, ValueKind::kMade, stage, per_row, columns);
    program_.instructions.push_back({action, VectorOp::kAddF32, y, std::move(operands), 0, 1, 0});
    return program_.instructions.back();
  }

  void Line() {
    const std::string& word = words_[0];
    if (word == "state" || word == "input") return Given(word == "state");
    if (word == "constant") return Constant();
    if (word == "matrix") return Matrix();
    if (word == "number") return Number();
    if (word == "next") return List(&program_.next, true);
    if (word == "output") return List(&program_.outputs, false);
    if (word == "clip") return Clip();
    if (word == "select") return Select();
    if (word == "slice") return Slice();
    if (word == "concat") return Concat();
    if (word == "quantize") return Quantize();
    if (word == "product") return Product();
    if (word == "take") return Take();
    if (word == "call") return Call();
    Vector();
  }

  void Given(bool is_state) {
    Count(3);
    const NumberType type = Type(1);
    if (is_state && type != kF32) Fail("a state is f32");
    if (type != kF32 && type != NumberType::kBool) Fail("an input is f32 or bool");
    const Stage stage = is_state ? Stage::kStep : Stage::kAhead;
    const ValueKind kind = is_state ? ValueKind::kState : ValueKind::kInput;
    const int32_t value = Add(type, kind, stage, true, Size(2, 1, kMaxProgramColumns));
    (is_state ? program_.states : program_.inputs).push_back(value);
  }

  void Constant() {
    Count(3);
    const int64_t columns = Size(2, 1, kMaxProgramColumns);
    program_.constants.push_back(Add(Type(1), ValueKind::kConstant, Stage::kOnce, false, columns));
  }

  void Matrix() {
    Count(4);
    if (Type(1) != kU8) Fail("a matrix is u8");
    const int32_t value = Add(kU8, ValueKind::kMatrix, Stage::kOnce, false, Size(3, 1, kMaxProgramColumns));
    program_.values.back().depth = Size(2, 1, 65536);
    program_.constants.push_back(value);
  }

  void Number() {
    Count(3);
    const NumberType type = Type(1);
    const uint64_t bits = ToBits(Word(2));
    Add(type, ValueKind::kNumber, Stage::kOnce, false, 1);
    program_.values.back().number = bits;
  }

  void List(std::vector<int32_t>* list, bool is_next) {
    if (!list->empty() || words_.size() < 2) Fail("expected one list of values");
    for (size_t i = 1; i < words_.size(); ++i) {
      const int32_t operand = Operand(i, kF32);
      if (is_next) {
        if (i > program_.states.size()) Fail("there are fewer states");
        const int64_t wanted = ValueOf(program_.states[i - 1]).columns;
        if (ValueOf(operand).columns != wanted) Fail("a state has " + std::to_string(wanted) + " columns");
      }
      if (!ValueOf(operand).per_row) Fail("value " + std::to_string(operand) + " is the same for all rows");
      list->push_back(operand);
    }
  }

  int64_t Columns(std::initializer_list<int32_t> operands) const {
    int64_t columns = 1;
    for (const int32_t operand : operands) {
      const int64_t own = ValueOf(operand).columns;
      if (own != 1 && columns != 1 && own != columns) {
        Fail("operands of " + std::to_string(columns) + " and " + std::to_string(own) + " columns");
      }
      columns = std::max(columns, own);
    }
    return columns;
  }

  void Vector() {
    bool known = false;
    for (const VectorWord& each : kVectorWords) {
      if (words_[0] != each.word) continue;
      known = true;
      const int32_t a = Operand(1);
      if (ValueOf(a).type != each.operand) continue;
      Count(1 + each.count);
      const bool largest = each.op == VectorOp::kLargestF32;
      if (each.count == 1) {
        Make(Action::kVector, each.result, largest ? 1 : ValueOf(a).columns, {a}).vector = each.op;
      } else {
        const int32_t b = Operand(2, each.operand);
        Make(Action::kVector, each.result, Columns({a, b}), {a, b}).vector = each.op;
      }
      return;
    }
    Fail(known ? "no instruction for operands of this type" : "no such instruction. It may need a newer rnnqc library");
  }

  void Clip() {
    Count(4);
    const int32_t a = Operand(1, kF32);
    const std::vector<int32_t> operands{a, OneColumn(2, kF32), OneColumn(3, kF32)};
    Make(Action::kVector, kF32, ValueOf(a).columns, operands).vector = VectorOp::kClipF32;
  }

  void Select() {
    Count(4);
    const int32_t a = Operand(1, NumberType::kBool);
    const int32_t b = Operand(2, kF32);
    const int32_t c = Operand(3, kF32);
    Make(Action::kVector, kF32, Columns({a, b, c}), {a, b, c}).vector = VectorOp::kSelectF32;
  }

  void Slice() {
    Count(5);
    const int32_t a = Operand(1);
    const int64_t columns = ValueOf(a).columns;
    const int64_t first = Size(2, 0, columns - 1);
    const int64_t count = Size(3, 1, columns);
    const int64_t step = Size(4, -columns, columns);
    const int64_t last = first + (count - 1) * step;
    if (last < 0 || last >= columns) Fail("it ends outside of " + std::to_string(columns) + " columns");
    Instruction& made = Make(Action::kSlice, ValueOf(a).type, count, {a});
    made.first = first;
    made.step = step;
    // Rows of a matmul's left operand are padded, so bytes are copied.
    ProgramValue& y = program_.values.back();
    if (step == 1 && y.type != kU8 && y.per_row) y.kind = ValueKind::kView;
  }

  void Concat() {
    std::vector<int32_t> operands{Operand(1)};
    const NumberType type = ValueOf(operands[0]).type;
    int64_t columns = ValueOf(operands[0]).columns;
    for (size_t i = 2; i < words_.size(); ++i) {
      operands.push_back(Operand(i, type));
      columns += ValueOf(operands.back()).columns;
    }
    if (columns > kMaxProgramColumns) Fail("there are too many columns");
    Make(Action::kConcat, type, columns, std::move(operands));
  }

  void Quantize() {
    Count(4);
    const int32_t a = Operand(1, kF32);
    const int32_t scale = OneColumn(2, kF32);
    const int32_t zero = ZeroPoint(3);
    Make(Action::kQuantize, kU8, ValueOf(a).columns, {a, scale, zero});
  }

  int32_t ZeroPoint(size_t index) const {
    const int32_t zero = OneColumn(index, kU8);
    const ValueKind kind = ValueOf(zero).kind;
    if (kind != ValueKind::kNumber && kind != ValueKind::kConstant) Fail("a zero point is a constant");
    return zero;
  }

  void Product() {
    Count(5);
    const int32_t a = Operand(1, kU8);
    const int32_t matrix = Operand(2);
    const ProgramValue& w = program_.value(matrix);
    if (w.kind != ValueKind::kMatrix) Fail("value " + std::to_string(matrix) + " is no matrix");
    if (ValueOf(a).columns != w.depth) Fail("the matrix has " + std::to_string(w.depth) + " rows");
    if (ValueOf(a).kind == ValueKind::kConstant || ValueOf(a).kind == ValueKind::kNumber) {
      Fail("the left operand is a constant");
    }
    const int32_t zero = ZeroPoint(3);
    const int32_t zeros = Operand(4, kU8);
    const ProgramValue& z = ValueOf(zeros);
    if (z.kind != ValueKind::kNumber && z.kind != ValueKind::kConstant) Fail("a zero point is a constant");
    if (z.columns != 1 && z.columns != w.columns) Fail("the matrix has " + std::to_string(w.columns) + " columns");
    Make(Action::kProduct, kI32, w.columns, {a, matrix, zero, zeros});
  }

  void Take() {
    Count(3);
    const int32_t table = Operand(1, kF32);
    if (ValueOf(table).kind != ValueKind::kConstant) Fail("a table is a constant");
    const int32_t index = Operand(2, kI32);
    Make(Action::kTake, kF32, ValueOf(index).columns, {table, index});
  }

  // call NAME VERSION operands.. attribute=i:1 attribute=l:1,2 attribute=f:3f800000 attribute=s:text
  void Call() {
    CalledOperator called{Word(1), static_cast<int>(Size(2, 1, 1000)), {}};
    std::vector<int32_t> operands;
    for (size_t i = 3; i < words_.size(); ++i) {
      const size_t equals = words_[i].find('=');
      if (equals == std::string::npos) {
        const bool chooses = called.name == "Where" && operands.empty();
        operands.push_back(Operand(i, chooses ? NumberType::kBool : kF32));
      } else {
        called.attributes.push_back(Attribute(words_[i], equals));
      }
    }
    if (operands.empty() || operands.size() > 3) Fail("expected one to three operands");
    int64_t columns = 1;
    bool per_row = false;
    for (const int32_t operand : operands) {
      const ProgramValue& value = ValueOf(operand);
      if (!value.per_row && value.kind != ValueKind::kConstant) Fail("an operand is made of constants");
      if (columns != 1 && value.columns != 1 && value.columns != columns) Fail("operands of different columns");
      columns = std::max(columns, value.columns);
      per_row = per_row || value.per_row;
    }
    if (!per_row) Fail("the operands are the same for all rows");
    const bool reduces = called.name.compare(0, 6, "Reduce") == 0;
    Make(Action::kCall, kF32, reduces ? 1 : columns, std::move(operands)).call = program_.calls.size();
    program_.calls.push_back(std::move(called));
  }

  static CallAttribute Attribute(const std::string& word, size_t equals) {
    CallAttribute made{word.substr(0, equals), AttributeKind::kInt, {}, 0, {}};
    const std::string text = word.substr(equals + 1);
    const size_t kind = text.size() < 3 || text[1] != ':' ? std::string::npos : std::string("ilfs").find(text[0]);
    if (made.name.empty() || kind == std::string::npos) Fail("\"" + word + "\" is no attribute");
    made.kind = static_cast<AttributeKind>(kind);
    const std::string value = text.substr(2);
    if (made.kind == AttributeKind::kFloat) {
      const uint32_t bits = static_cast<uint32_t>(ToBits(value));
      std::memcpy(&made.real, &bits, sizeof(bits));
    } else if (made.kind == AttributeKind::kString) {
      made.text = value;
    } else if (made.kind == AttributeKind::kInt) {
      made.numbers.push_back(ToNumber(value));
    } else {
      std::istringstream parts(value);
      for (std::string part; std::getline(parts, part, ',');) made.numbers.push_back(ToNumber(part));
    }
    return made;
  }

  std::vector<std::string> words_;
  Program program_;
};

}  // namespace

int64_t SizeOf(NumberType type) {
  switch (type) {
    case NumberType::kF64:
      return 8;
    case NumberType::kF32:
    case NumberType::kI32:
      return 4;
    default:
      return 1;
  }
}

const char* NameOf(NumberType type) { return kTypeNames[static_cast<size_t>(type)]; }

Program ParseProgram(const std::string& text) { return Parser().Parse(text); }

}  // namespace rnnqc
