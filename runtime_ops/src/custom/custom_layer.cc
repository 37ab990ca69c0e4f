#include "custom/custom_layer.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace rnnqc {
namespace {

// The values that are computed ahead of the steps should together stay in the second-level cache.
constexpr int64_t kAheadBytes = 512 * 1024;
constexpr int64_t kLeastAheadRows = 8;
constexpr int64_t kMostAheadRows = 96;

const uint8_t* Bytes(const std::vector<const void*>& constants, const Program& program, int32_t value) {
  const auto place = std::find(program.constants.begin(), program.constants.end(), value);
  return static_cast<const uint8_t*>(constants[static_cast<size_t>(place - program.constants.begin())]);
}

}  // namespace

CustomLayer::CustomLayer(const Program& program, const KernelTable& kernels, const std::vector<const void*>& constants)
    : program_(program), kernels_(kernels), once_(program.values.size()), products_(program.instructions.size()) {
  int64_t ahead_bytes = 0;
  for (size_t i = 0; i < program.values.size(); ++i) {
    const ProgramValue& value = program.values[i];
    const int64_t bytes = RoundUp(value.columns * SizeOf(value.type), static_cast<int64_t>(kAlignment));
    if (value.stage == Stage::kAhead) ahead_bytes += bytes;
    if (value.stage != Stage::kOnce || value.kind == ValueKind::kMatrix) continue;
    once_[i] = AlignedArray<uint8_t>(RowStride(value) * SizeOf(value.type));
    const size_t size = static_cast<size_t>(value.columns * SizeOf(value.type));
    if (value.kind == ValueKind::kNumber) std::memcpy(once_[i].data(), &value.number, size);
    if (value.kind == ValueKind::kConstant) {
      std::memcpy(once_[i].data(), Bytes(constants, program, static_cast<int32_t>(i)), size);
    }
  }
  ahead_rows_ = std::min(std::max(kAheadBytes / std::max<int64_t>(1, ahead_bytes), kLeastAheadRows), kMostAheadRows);
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (program.instructions[i].action == Action::kProduct) {
      products_[i] = MakeProduct(program.instructions[i], constants);
    }
  }
  RunningProgram running(program_, kernels_, once_, products_);
  running.RunOnce();
}

std::shared_ptr<const PackedMatrix> CustomLayer::Packed(int32_t value,
                                                        const std::vector<const void*>& constants) const {
  for (size_t i = 0; i < products_.size(); ++i) {
    const Instruction& other = program_.instructions[i];
    if (products_[i].matrix != nullptr && other.operands[1] == value) return products_[i].matrix;
  }
  const int64_t depth = program_.value(value).depth;
  const int64_t columns = program_.value(value).columns;
  const uint8_t* numbers = Bytes(constants, program_, value);
  std::vector<int8_t> centred(static_cast<size_t>(depth * columns));
  for (size_t i = 0; i < centred.size(); ++i) {
    centred[i] = static_cast<int8_t>(static_cast<int32_t>(numbers[i]) - 128);
  }
  Matrix w{};
  w.weights = centred.data();
  w.k = depth;
  w.units = columns;
  w.gates = 1;
  return std::make_shared<const PackedMatrix>(PackMatrix(Formats(kernels_), Width::kFewest, w, 1));
}

ProgramProduct CustomLayer::MakeProduct(const Instruction& instruction,
                                        const std::vector<const void*>& constants) const {
  ProgramProduct product;
  product.matrix = Packed(instruction.operands[1], constants);
  product.zero_point = *once_[static_cast<size_t>(instruction.operands[2])].data();
  const AlignedArray<int32_t>& of_one = product.matrix->start;
  for (int64_t i = 0; i < of_one.size(); ++i) product.start.push_back(product.zero_point * of_one.data()[i]);
  const int32_t zeros = instruction.operands[3];
  const uint8_t* zero = once_[static_cast<size_t>(zeros)].data();
  std::vector<int32_t> sums;
  for (int64_t i = 0; i < program_.value(instruction.y).columns; ++i) {
    sums.push_back(128 - static_cast<int32_t>(zero[program_.value(zeros).columns == 1 ? 0 : i]));
  }
  if (std::any_of(sums.begin(), sums.end(), [](int32_t sum) { return sum != 0; })) product.row_sums = std::move(sums);
  return product;
}

void CustomLayer::Run(const CustomArgs& args, Scratch* scratch, OperatorCaller* caller) const {
  const int64_t steps = std::min(args.time, std::max<int64_t>(1, ahead_rows_ / args.batch));
  RunningProgram running(program_, kernels_, once_, products_);
  scratch->Take([&](ScratchPieces& pieces) { running.VisitScratch(pieces, args.batch, steps); });
  running.Run(args, steps, caller);
}

}  // namespace rnnqc
