#ifndef RNNQC_OPS_CELL_INPUTS_H_
#define RNNQC_OPS_CELL_INPUTS_H_

#include <string>
#include <vector>

#include "cells/driver/cell_config.h"
#include "cells/driver/cell_run.h"
#include "ort_support.h"

namespace rnnqc {

// Places of the inputs of all operators; some have fewer.
enum Input : size_t {
  kX,
  kW,
  kR,
  kXMultiplier,
  kHMultiplier,
  kBias,
  kGateTable,
  kCellTable,
  kHiddenBias = kCellTable,
  kSequenceLens,
  kInitialH,
  kInitialC,
  kPeephole,
  kWZeroPoint,
  kRZeroPoint,
  kWGroupMultiplier,
  kRGroupMultiplier,
  kXScale,
  kX2,  // and two more: further parts of X
  kXFactor = kX2 + kMostParts - 1,
  kInputCount,
};

// The properties that differ between the operators.
struct CellOperator {
  const char* name;
  // The number of aliases, called name_00 and so on, for operators with function bodies of their own; as in
  // rnnqc/cells/types.py.
  size_t aliases;
  int64_t gates;
  const char* table_name;  // of input kCellTable; null if that is reserved
  bool has_cell_state;     // otherwise kInitialC and kPeephole are reserved
  size_t output_count;     // Y, last states, and Y_codes

  const char* input_name(size_t input) const;  // null for reserved ones

  size_t codes_output() const { return output_count - 1; }
};

// The element type of an input; undefined if it may have several.
ort::ElementType OnlyType(size_t input);

extern const CellOperator kQuantLstmCell;
extern const CellOperator kQuantGruCell;
extern const CellOperator kQuantRnnCell;

constexpr size_t kMostOutputs = 4;

// Sizes that the shapes of the inputs have in common; negative if not known.
struct Sizes {
  int64_t time = -1;
  int64_t batch = -1;
  int64_t input = -1;
  int64_t hidden = -1;
  bool state_axis = false;
  bool packed_w = false;
  bool packed_r = false;
  bool wide_w = false;  // int16
  bool wide_r = false;
  int64_t w_group_size = 0;
  int64_t r_group_size = 0;
  int64_t w_bits = 4;  // of the numbers of packed W
  int64_t r_bits = 4;
  int64_t w_wide_columns = 0;  // of packed W
  int64_t r_wide_columns = 0;
};

// The inputs and outputs of one node: types, shapes and values are checked here, and whatever is wrong is a
// std::invalid_argument that names the input and what is expected.
class CellInputs {
 public:
  CellInputs(const ort::OrtApi& api, const CellOperator& op, const CellConfig& config)
      : api_(api), op_(op), config_(config) {}

  // At creation: checks declared types and shapes.
  void CheckDeclared(const ort::KernelInfo& info);
  bool present(size_t input) const { return present_[input]; }
  const Sizes& sizes() const { return sizes_; }
  // Values of the constant inputs, null for others. onnxruntime may move them after the kernel's creation.
  void ReadConstants(const ort::KernelInfo& info, const ort::OrtValue** inputs);
  // Whether all of the inputs that become packed weights are constant. They are not read by Read() then.
  bool has_constant_weights() const { return constant_weights_; }
  bool has_constant_gate_table() const { return gate_table_is_constant_; }

  // Lets runs leave out an input.
  void Skip(size_t input);

  // Reads the inputs of a run.
  void Read(ort::OrtKernelContext* context, const ort::OrtValue** inputs) const;
  // Checks X, with `input_size` if it is known, and the inputs of all cells; returns the run's sizes.
  Sizes Use(const ort::OrtValue* const* inputs, int64_t input_size, CellArgs* args) const;
  // gate_table, if there is one; a constant one is checked already.
  void UseGateTable(const ort::OrtValue* const* inputs, int64_t required, CellArgs* args) const;
  void UseOutputs(ort::OrtKernelContext* context, const Sizes& sizes, CellArgs* args) const;

  void CheckShape(size_t input, const ort::Shape& found, const ort::Shape& expected,
                  const Sizes& sizes = Sizes()) const;
  void CheckGateTable(const ort::OrtValue* table, int64_t required) const;
  [[noreturn]] void FailWithoutGateTable() const;
  // The input size that W has, within what the operator allows.
  int64_t CheckedInputSize(const ort::OrtValue* const* inputs, const Sizes& sizes) const;
  ort::Shape CheckedShape(size_t input, const ort::OrtValue* value, const Sizes& sizes) const;

  // Data of an input after a check of its shape, or null if it is absent.
  template <typename T>
  const T* CheckedData(size_t input, const ort::OrtValue* const* inputs, const Sizes& sizes) const {
    if (inputs[input] == nullptr) return nullptr;
    CheckedShape(input, inputs[input], sizes);
    return ort::DataOf<const T>(api_, inputs[input]);
  }

  // A weight matrix, with the memory of its codes if they have to be unpacked.
  struct Weights {
    WeightMatrix matrix;
    std::vector<int8_t> codes;
  };
  Weights UnpackedWeights(size_t input, const ort::OrtValue* const* inputs, const Sizes& sizes) const;
  // Parameters except the matrices.
  CellParameters Vectors(const ort::OrtValue* const* inputs, const Sizes& sizes) const;

 private:
  void ReadPlaces(const ort::KernelInfo& info);
  bool IsPacked(size_t input) const;
  ort::ElementType ExpectedType(size_t input) const;
  ort::Shape ExpectedShape(size_t input, const Sizes& sizes) const;
  std::string ShapeInWords(size_t input, const Sizes& sizes) const;
  void CheckInput(size_t input, const ort::TensorType& type, Sizes* sizes);
  static void CheckWidth(const std::string& matrix, bool packed, const char* attribute, int64_t bits);
  static void CheckGroups(const std::string& matrix, bool packed, const char* attribute, int64_t group_size,
                          bool multipliers);
  void CheckScales() const;
  void CheckFloatInput() const;
  Sizes UseX(const ort::OrtValue* const* inputs, int64_t input_size, CellArgs* args) const;
  int64_t UseParts(const ort::OrtValue* const* inputs, const Sizes& sizes, int64_t input_size, CellArgs* args) const;
  void CheckOutputs(const ort::KernelInfo& info);
  float* StateOutput(ort::OrtKernelContext* context, size_t output, const Sizes& sizes) const;
  template <typename T>
  T* OutputData(ort::OrtKernelContext* context, size_t index, const int64_t* shape, size_t rank) const;

  const ort::OrtApi& api_;
  const CellOperator& op_;
  const CellConfig& config_;
  Sizes sizes_;  // those that do not change
  bool present_[kInputCount] = {};
  size_t node_index_[kInputCount];   // which of the node's inputs it is; beyond them if it is absent
  size_t needed_[kInputCount] = {};  // the first needed_count_ are what a run reads
  size_t needed_count_ = 0;
  bool has_output_[kMostOutputs] = {};
  bool has_parts_ = false;  // of X
  bool gate_table_is_constant_ = false;
  bool constant_weights_ = false;
};

}  // namespace rnnqc

#endif  // RNNQC_OPS_CELL_INPUTS_H_
