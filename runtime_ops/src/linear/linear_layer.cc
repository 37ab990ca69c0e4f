#include "linear/linear_layer.h"

#include <algorithm>
#include <cstring>

#include "cells/driver/matmul.h"
#include "cells/driver/row_format.h"
#include "threads/cost.h"
#include "threads/team.h"

namespace rnnqc {
namespace {

// Weights that stay in the second-level cache multiply so many rows at a time, whose quantized values stay there, too.
// It is a multiple of what the kernels take at once.
constexpr int64_t kNearRows = 96;
constexpr int64_t kNearWeights = 1024 * 1024;

PackedMatrix Pack(const LinearConfig& config, const KernelTable& kernels, const Matrix& w) {
  const int64_t zero_point = config.x_mode == CodeMode::kDynamicRow ? 1 : config.x_zero_point;
  return PackMatrix(Formats(kernels), Width::kFewest, w, static_cast<int32_t>(zero_point));
}

}  // namespace

// A running call and its memory.
struct LinearLayer::Call {
  const LinearLayer& layer;
  const LinearArgs& args;
  uint8_t* codes = nullptr;
  float* scale = nullptr;
  int32_t* zero_point = nullptr;
  float* last_block = nullptr;  // rows of kBlockColumns

  void VisitScratch(ScratchPieces& pieces) {
    const bool grids = layer.config_.x_mode == CodeMode::kDynamicRow;
    pieces(codes, args.rows * layer.w_.k_padded);
    pieces(scale, grids ? args.rows : 0);
    pieces(zero_point, grids ? args.rows : 0);
    pieces(last_block, layer.columns_ % kBlockColumns == 0 ? 0 : args.rows * kBlockColumns);
  }
};

LinearLayer::LinearLayer(const LinearConfig& config, const KernelTable& kernels, const Matrix& w,
                         const float* multiplier, const float* bias)
    : config_(config),
      kernels_(kernels),
      columns_(w.units),
      blocks_(ColumnBlockCount(w.units, 1)),
      w_(Pack(config, kernels, w)),
      multiplier_(PackedColumns(multiplier, 1, w.units)),
      bias_(PackedColumns(bias, 1, w.units)) {}

LinearLayer::Division LinearLayer::Divide(int64_t rows) const {
  const double bytes = static_cast<double>(w_.bytes());
  if (!IsWorthThreads(ProductTime(bytes, w_.k, columns_, rows))) return {1, 1};
  const int64_t parts = std::min(Processors(), Team::kMaxMembers);
  if (rows >= kernels_.rows_at_once * parts && (w_.bytes() <= kNearWeights || blocks_ < parts)) return {parts, 1};
  return {1, std::min(parts, blocks_)};
}

void LinearLayer::Quantize(const Call& call, int64_t begin, int64_t end) const {
  for (int64_t row = begin; row < end; ++row) {
    uint8_t* codes = call.codes + row * w_.k_padded;
    std::memset(codes + w_.k, 0, static_cast<size_t>(w_.k_padded - w_.k));
    if (config_.x_mode == CodeMode::kCodes) {
      std::memcpy(codes, call.args.x_codes + row * w_.k, static_cast<size_t>(w_.k));
      continue;
    }
    const float* x = call.args.x_float + row * w_.k;
    RowFormat format{config_.x_scale, static_cast<int32_t>(config_.x_zero_point)};
    if (config_.x_mode == CodeMode::kDynamicRow) {
      format = DynamicRowFormat(kernels_.min_max(x, w_.k), 8);
      call.scale[row] = format.scale;
      call.zero_point[row] = format.zero_point;
    }
    kernels_.quantize_row(x, w_.k, format.scale, format.zero_point, codes);
  }
}

void LinearLayer::Project(const Call& call, int64_t begin, int64_t end, int64_t block_begin, int64_t block_end) const {
  const int64_t whole = std::min(block_end, columns_ / kBlockColumns);
  ProjectArgs project{};
  project.matmul =
      Matmul(w_, call.codes + begin * w_.k_padded, w_.k_padded, end - begin, std::min(block_begin, whole), whole);
  if (config_.x_mode == CodeMode::kDynamicRow) {
    project.row_scale = call.scale + begin;
    project.row_zero_point = call.zero_point + begin;
  }
  project.multiplier = multiplier_.data();
  project.bias = bias_.data();
  project.p = call.args.y + begin * columns_;
  project.p_stride = columns_;
  if (block_begin < whole) ProjectRows(kernels_, w_, project);
  if (whole < block_end) ProjectLastBlock(call, project, begin, end);
}

void LinearLayer::ProjectLastBlock(const Call& call, ProjectArgs project, int64_t begin, int64_t end) const {
  const int64_t column = (blocks_ - 1) * kBlockColumns;
  project.matmul.weights = w_.weights.data() + (blocks_ - 1) * PackedBytes(w_.format, w_.k, kBlockUnits);
  if (project.matmul.multipliers != nullptr) {
    project.matmul.multipliers += w_.multipliers.size() / blocks_ * (blocks_ - 1);
  }
  project.matmul.start += column;
  project.matmul.block_begin = 0;
  project.matmul.block_end = 1;
  project.matmul.columns -= column;
  project.multiplier += column;
  project.bias += column;
  project.p = call.last_block + begin * kBlockColumns;
  project.p_stride = kBlockColumns;
  ProjectRows(kernels_, w_, project);
  for (int64_t row = begin; row < end; ++row) {
    std::memcpy(call.args.y + row * columns_ + column, call.last_block + row * kBlockColumns,
                static_cast<size_t>(columns_ - column) * sizeof(float));
  }
}

void LinearLayer::RunRows(const Call& call, int64_t begin, int64_t end) const {
  const int64_t step = w_.bytes() <= kNearWeights ? kNearRows : std::max<int64_t>(1, end - begin);
  for (int64_t row = begin; row < end; row += step) {
    const int64_t next = std::min(row + step, end);
    Quantize(call, row, next);
    Project(call, row, next, 0, blocks_);
  }
}

void LinearLayer::RunParts(const Call& call, Work work, int64_t parts, Parallel* parallel) const {
  struct Task {
    const Call& call;
    Work work;
    int64_t parts;
  };
  Task task{call, work, parts};
  parallel->For(
      parts,
      [](void* user, size_t part) {
        const Task& shared = *static_cast<const Task*>(user);
        (shared.call.layer.*shared.work)(shared.call, static_cast<int64_t>(part), shared.parts);
      },
      &task);
}

void LinearLayer::RowsPart(const Call& call, int64_t part, int64_t parts) const {
  RunRows(call, call.args.rows * part / parts, call.args.rows * (part + 1) / parts);
}

void LinearLayer::QuantizePart(const Call& call, int64_t part, int64_t parts) const {
  Quantize(call, call.args.rows * part / parts, call.args.rows * (part + 1) / parts);
}

void LinearLayer::ColumnsPart(const Call& call, int64_t part, int64_t parts) const {
  Project(call, 0, call.args.rows, blocks_ * part / parts, blocks_ * (part + 1) / parts);
}

void LinearLayer::Run(const LinearArgs& args, Scratch* scratch, Parallel* parallel) const {
  if (args.rows == 0) return;
  Call call{*this, args};
  scratch->Take([&call](ScratchPieces& pieces) { call.VisitScratch(pieces); });
  const Division division = Divide(args.rows);
  if (division.row_parts > 1) {
    RunParts(call, &LinearLayer::RowsPart, division.row_parts, parallel);
  } else if (division.column_parts > 1) {
    if (args.rows * w_.k < kSharedQuantization) {
      Quantize(call, 0, args.rows);
    } else {
      RunParts(call, &LinearLayer::QuantizePart, std::min(division.column_parts, args.rows), parallel);
    }
    RunParts(call, &LinearLayer::ColumnsPart, division.column_parts, parallel);
  } else {
    RunRows(call, 0, args.rows);
  }
}

}  // namespace rnnqc
