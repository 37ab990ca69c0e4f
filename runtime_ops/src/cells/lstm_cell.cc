#include "cells/lstm_cell.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>

#include "cells/generic_step.h"
#include "cells/sequence_rows.h"
#include "cells/team.h"

namespace rnnqc {
namespace {

// Pre-activations of the input are computed for as many steps at once as fit here.
constexpr int64_t kProjectionBytes = 512 * 1024;
// The projection takes so many rows at a time that their results stay in the second-level cache: at least
// kProjectedRows, and about kProjectedProducts products.
constexpr int64_t kProjectedRows = 16;
constexpr int64_t kProjectedProducts = 1 << 20;
// Rows whose sums of columns of eight bits are taken at a time.
constexpr int64_t kWideRows = 16;
// Fewer input values than this are quantized by one thread.
constexpr int64_t kSharedQuantization = 16 * 1024;

// Estimates to decide how many threads a call is worth, of a core with 8-bit dot products.
constexpr double kBytesPerNanosecond = 100;
constexpr double kProductsPerNanosecond = 300;
// A call pays more than it gains if it is shorter than this (nanoseconds), and so does a step that ends in a barrier.
constexpr double kSharedCall = 6000;
constexpr double kSharedStep = 800;
constexpr double kPartOfAStep = 250;
// Threads take rows of their own, without barriers, if each has this many and the weights fit into its cache.
constexpr int64_t kRowsOfAGroup = 4;
constexpr double kPrivateWeights = 768 * 1024;

constexpr float kSmallestMagnitude = 0x1p-100f;
constexpr float kLargestMagnitude = 0x1p60f;

// Codes of 16 bits are kept as two rows of bytes, the upper ones first.
int64_t Planes(int64_t bits) { return bits == 16 ? 2 : 1; }

float DynamicScale(float largest, int64_t bits) {
  const float m = std::min(std::max(largest, kSmallestMagnitude), kLargestMagnitude);
  return m / (bits == 16 ? 32767.0f : 127.0f);
}

struct RowGrid {
  float scale;
  int32_t zero_point;
};

// The grid of unsigned codes that holds 0 and the range of an input row.
RowGrid DynamicGrid(const MinMax& range, int64_t bits) {
  const float largest = bits == 16 ? 65535.0f : 255.0f;
  const float a = std::max(range.min, -kLargestMagnitude);
  const float b = std::min(range.max, kLargestMagnitude);
  const float scale = std::max(b - a, kSmallestMagnitude) / largest;
  const float zero_point = std::min(std::nearbyint((0.0f - a) / scale), largest);
  return {scale, static_cast<int32_t>(zero_point)};
}

bool HasTablesOnly(const LstmConfig& config) {
  bool tables = config.output_kind == Kind::kTable && config.cell_is_quantized();
  for (const GateConfig& gate : config.gates) tables = tables && gate.kind == Kind::kTable;
  return tables && config.h_mode == CodeMode::kStatic && !config.input_forget;
}

bool UsesTableKernel(const LstmConfig& config, const PackedLstm& packed) {
  return HasTablesOnly(config) && packed.peephole.size() == 0;
}

// Some rows of one call of the operator. A step's columns may be divided into parts that run at the same time.
class LstmRun {
 public:
  LstmRun(const LstmConfig& config, const KernelTable& kernels, const PackedLstm& packed, const LstmArgs& args,
          int64_t first, int64_t stride)
      : config_(config),
        kernels_(kernels),
        packed_(packed),
        args_(args),
        sequences_(config.direction, args.time, args.batch, args.sequence_lens, first, stride),
        rows_(sequences_.count()),
        hidden_(config.hidden_size),
        blocks_(BlockCount(hidden_)),
        columns_(blocks_ * kBlockColumns),
        units_padded_(blocks_ * kBlockUnits),
        x_planes_(Planes(config.x_bits)),
        h_planes_(Planes(config.h_bits)),
        projected_rows_(std::max(kProjectedRows, kProjectedProducts / (packed.w.k_padded * columns_))),
        chunk_steps_(std::max<int64_t>(
            1, std::min(args.time, kProjectionBytes / (rows_ * columns_ * static_cast<int64_t>(sizeof(float)))))),
        table_kernel_(args.bytes != nullptr || UsesTableKernel(config, packed)) {}

  int64_t ScratchBytes() {
    ScratchCounter counter;
    ForEachPiece([&counter](auto*& pointer, int64_t count) { counter.Count(pointer, count); });
    return counter.bytes();
  }

  // `memory` has ScratchBytes() bytes.
  void TakeScratch(uint8_t* memory) {
    ScratchTaker taker(memory);
    ForEachPiece([&taker](auto*& pointer, int64_t count) { taker.Take(&pointer, count); });
  }

  // Alone, or with the help of a team whose work is Part(), in at most `most_parts` parts.
  void Run(Team* team = nullptr, int64_t most_parts = 1) {
    team_ = team;
    most_parts_ = std::min(most_parts, blocks_);
    RunAll();
  }

  static void Part(void* self, int64_t part, int64_t parts) { static_cast<LstmRun*>(self)->DoPart(part, parts); }

 private:
  enum class Phase { kQuantize, kProjectAndStep, kStep };

  template <typename Visit>
  void ForEachPiece(const Visit& visit) {
    const int64_t chunk_rows = chunk_steps_ * rows_;
    sequences_.ForEachPiece(visit);
    visit(x_codes_, chunk_rows * x_planes_ * packed_.w.k_padded);
    visit(x_scale_, chunk_rows);
    visit(x_zero_point_, chunk_rows * x_planes_);
    visit(x_acc_, x_planes_ == 1 ? 0 : std::min(projected_rows_, chunk_rows) * x_planes_ * columns_);
    visit(p_, chunk_rows * columns_);
    visit(acc_, rows_ * h_planes_ * columns_);
    visit(no_acc_, h_planes_ == 1 ? 0 : rows_ * columns_);
    visit(no_start_, x_planes_ + h_planes_ == 2 ? 0 : columns_);
    visit(c_, rows_ * units_padded_);
    visit(c_bytes_, args_.bytes == nullptr ? 0 : rows_ * units_padded_);
    visit(h_[0], rows_ * h_planes_ * units_padded_);
    visit(h_[1], rows_ * h_planes_ * units_padded_);
    visit(h_of_eight_, h_planes_ == 1 ? 0 : rows_ * units_padded_);
    visit(h_zero_point_, rows_ * h_planes_);
    visit(h_scale_, rows_);
    visit(y_rows_, rows_);
    visit(y_scratch_, args_.y == nullptr ? rows_ * hidden_ : 0);
    visit(limited_h_, hidden_);
  }

  void RunAll() {
    sequences_.Sort();
    InitializeStates();
    const int64_t steps = sequences_.length(0);
    for (chunk_begin_ = 0; chunk_begin_ < steps; chunk_begin_ += chunk_steps_) {
      chunk_end_ = std::min(chunk_begin_ + chunk_steps_, steps);
      QuantizeChunk();
      int64_t row = 0;
      for (step_ = chunk_begin_; step_ < chunk_end_; ++step_) {
        active_ = sequences_.Active(step_);
        p_step_ = p_ + row * columns_;
        for (int64_t r = 0; r < active_; ++r) {
          y_rows_[r] =
              args_.y == nullptr ? y_scratch_ + r * hidden_ : args_.y + sequences_.Position(step_, r) * hidden_;
        }
        // The parts of a step read the pre-activations of their own columns only.
        RunPhase(step_ == chunk_begin_ ? Phase::kProjectAndStep : Phase::kStep);
        if (!table_kernel_) GenericCells();
        row += active_;
      }
    }
    WriteFinalStates();
    sequences_.ClearPadding(hidden_, config_.h_zero_point, args_.y, args_.y_codes);
  }

  void RunPhase(Phase phase) {
    phase_ = phase;
    if (team_ == nullptr) {
      DoPart(0, 1);
    } else {
      team_->Run(std::min(most_parts_, team_->Members()));
    }
  }

  void DoPart(int64_t part, int64_t parts) {
    if (phase_ == Phase::kQuantize) {
      const int64_t steps = chunk_end_ - chunk_begin_;
      QuantizeSteps(chunk_begin_ + steps * part / parts, chunk_begin_ + steps * (part + 1) / parts);
      return;
    }
    const Blocks blocks{blocks_ * part / parts, blocks_ * (part + 1) / parts};
    if (phase_ == Phase::kProjectAndStep) Project(blocks);
    Step(blocks);
  }

  // Hidden codes before and after a step: parts of one step read the former while they write the latter.
  uint8_t* CodesBefore(int64_t step) const { return h_[step % 2]; }
  uint8_t* CodesAfter(int64_t step) const { return h_[(step + 1) % 2]; }

  void InitializeStates() {
    uint8_t* h = CodesBefore(0);
    const size_t row_bytes = static_cast<size_t>(units_padded_);
    for (int64_t r = 0; r < rows_; ++r) {
      SplitZeroPoint(static_cast<int32_t>(config_.h_zero_point), h_planes_, h_zero_point_ + r * h_planes_);
      for (int64_t i = r * h_planes_; i < (r + 1) * h_planes_; ++i) {
        std::memset(h + i * units_padded_, h_zero_point_[i], row_bytes);
      }
    }
    if (h_planes_ > 1) std::fill(no_acc_, no_acc_ + rows_ * columns_, 0);
    if (x_planes_ + h_planes_ > 2) std::fill(no_start_, no_start_ + columns_, 0);
    std::memset(c_, 0, static_cast<size_t>(rows_ * units_padded_) * sizeof(float));
    if (args_.bytes != nullptr) std::memset(c_bytes_, 0, static_cast<size_t>(rows_ * units_padded_));
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t b = sequences_.batch_index(r);
      h_scale_[r] = DynamicScale(0.0f, config_.h_bits);
      if (args_.initial_h != nullptr) QuantizeHidden(r, LimitedHidden(args_.initial_h + b * hidden_), h);
      if (args_.initial_c == nullptr) continue;
      if (args_.bytes != nullptr) {
        InitialCellBytes(args_.initial_c + b * hidden_, c_bytes_ + r * units_padded_);
      } else {
        InitialCells(config_, args_.initial_c + b * hidden_, hidden_, c_ + r * units_padded_);
      }
    }
  }

  void InitialCellBytes(const float* values, int8_t* c) const {
    const ByteRange& range = args_.bytes->cell;
    for (int64_t unit = 0; unit < hidden_; ++unit) {
      const float multiple = values[unit] == values[unit] ? values[unit] / config_.cell_scale : 0.0f;
      const float limited = std::min(std::max(multiple, static_cast<float>(range.low)), static_cast<float>(range.high));
      c[unit] = static_cast<int8_t>(std::nearbyint(limited));
    }
  }

  // The zero points of the rows of bytes.
  static void SplitZeroPoint(int32_t zero_point, int64_t planes, int32_t* parts) {
    if (planes == 2) *parts++ = zero_point >> 8;
    *parts = planes == 2 ? zero_point & 255 : zero_point;
  }

  // Codes of n values, written to one row or, with 16 bits, to two.
  void Quantize(const float* values, int64_t n, float scale, int32_t zero_point, int64_t planes, uint8_t* codes,
                int64_t stride) const {
    if (planes == 2) {
      kernels_.quantize_row_16(values, n, scale, zero_point, codes, codes + stride);
    } else {
      kernels_.quantize_row(values, n, scale, zero_point, codes);
    }
  }

  // Limits codes to those of a quantizer of the arithmetic "grid".
  void LimitCodes(int64_t quantizer, int64_t n, uint8_t* codes) const {
    if (args_.bytes == nullptr) return;
    const uint8_t low = static_cast<uint8_t>(config_.grid.points[quantizer].min);
    const uint8_t high = static_cast<uint8_t>(config_.grid.points[quantizer].max);
    if (low == 0 && high == UINT8_MAX) return;
    for (int64_t i = 0; i < n; ++i) codes[i] = std::min(std::max(codes[i], low), high);
  }

  // For h_mode dynamic_row an infinite initial value counts as the largest finite one.
  const float* LimitedHidden(const float* values) {
    if (config_.h_mode != CodeMode::kDynamicRow) return values;
    for (int64_t unit = 0; unit < hidden_; ++unit) {
      limited_h_[unit] =
          std::isnan(values[unit]) ? 0.0f : std::min(std::max(values[unit], -kLargestMagnitude), kLargestMagnitude);
    }
    return limited_h_;
  }

  void QuantizeHidden(int64_t r, const float* values, uint8_t* h) {
    const bool dynamic = config_.h_mode == CodeMode::kDynamicRow;
    if (dynamic) h_scale_[r] = DynamicScale(kernels_.max_abs(values, hidden_), config_.h_bits);
    Quantize(values, hidden_, dynamic ? h_scale_[r] : config_.h_scale, static_cast<int32_t>(config_.h_zero_point),
             h_planes_, h + r * h_planes_ * units_padded_, units_padded_);
    LimitCodes(GridOrder::kHidden, hidden_, h + r * h_planes_ * units_padded_);
  }

  // Codes of the chunk, in the order in which its steps and rows run.
  void QuantizeChunk() {
    chunk_rows_ = RowsBefore(chunk_end_);
    if (chunk_rows_ * packed_.w.k < kSharedQuantization) {
      QuantizeSteps(chunk_begin_, chunk_end_);
    } else {
      RunPhase(Phase::kQuantize);
    }
  }

  // Rows of the chunk's steps before this one.
  int64_t RowsBefore(int64_t step) const {
    if (args_.sequence_lens == nullptr) return (step - chunk_begin_) * rows_;
    int64_t rows = 0;
    for (int64_t earlier = chunk_begin_; earlier < step; ++earlier) rows += sequences_.Active(earlier);
    return rows;
  }

  void QuantizeSteps(int64_t begin, int64_t end) {
    int64_t row = RowsBefore(begin);
    for (int64_t step = begin; step < end; ++step) {
      const int64_t active = sequences_.Active(step);
      for (int64_t r = 0; r < active; ++r) QuantizeInput(sequences_.Position(step, r), row++);
    }
  }

  void QuantizeInput(int64_t position, int64_t row) {
    const int64_t size = packed_.w.k;
    const int64_t stride = packed_.w.k_padded;
    uint8_t* codes = x_codes_ + row * x_planes_ * stride;
    for (int64_t i = 0; i < x_planes_; ++i) {
      std::memset(codes + i * stride + size, 0, static_cast<size_t>(stride - size));
    }
    if (config_.x_mode == CodeMode::kCodes) {
      std::memcpy(codes, args_.x_codes + position * size, static_cast<size_t>(size));
      return;
    }
    const float* x = args_.x_float + position * size;
    RowGrid grid{config_.x_scale, static_cast<int32_t>(config_.x_zero_point)};
    if (config_.x_mode == CodeMode::kDynamicRow) {
      grid = DynamicGrid(kernels_.min_max(x, size), config_.x_bits);
      x_scale_[row] = grid.scale;
    }
    SplitZeroPoint(grid.zero_point, x_planes_, x_zero_point_ + row * x_planes_);
    Quantize(x, size, grid.scale, grid.zero_point, x_planes_, codes, stride);
    LimitCodes(GridOrder::kInput, size, codes);
  }

  struct Blocks {
    int64_t begin;
    int64_t end;
  };

  void Project(const Blocks& blocks) const {
    for (int64_t row = 0; row < chunk_rows_; row += projected_rows_) {
      const int64_t end = std::min(row + projected_rows_, chunk_rows_);
      if (x_planes_ == 2) {
        ProjectPlanes(row, end, blocks);
      } else {
        ProjectRows(row, end, blocks);
      }
    }
  }

  void ProjectPlanes(int64_t begin, int64_t end, const Blocks& blocks) const {
    const int64_t stride = packed_.w.k_padded;
    RecurrentArgs sums{};
    sums.matmul = Matmul(packed_.w, x_codes_ + 2 * begin * stride, stride, 2 * (end - begin), blocks);
    sums.matmul.start = no_start_;
    sums.acc = x_acc_;
    sums.acc_stride = columns_;
    Multiply(packed_.w, sums);
    JoinArgs join = Join(packed_.w, x_acc_, end - begin, blocks);
    join.zero_point = x_zero_point_ + 2 * begin;
    if (config_.x_mode == CodeMode::kDynamicRow) join.row_scale = x_scale_ + begin;
    join.multiplier = packed_.x_multiplier.data();
    join.bias = packed_.bias.data();
    join.p = p_ + begin * columns_;
    kernels_.join(join);
  }

  JoinArgs Join(const PackedMatrix& matrix, const int32_t* acc, int64_t rows, const Blocks& blocks) const {
    JoinArgs join{};
    join.rows = rows;
    join.block_begin = blocks.begin;
    join.block_end = blocks.end;
    join.acc = acc;
    join.acc_stride = columns_;
    join.start = matrix.start.data();
    join.p_stride = columns_;
    return join;
  }

  void Multiply(const PackedMatrix& matrix, const RecurrentArgs& args) const {
    (matrix.format == PackedFormat::kS4Blocks ? kernels_.recurrent_s4 : kernels_.recurrent)(args);
  }

  void ProjectRows(int64_t begin, int64_t end, const Blocks& blocks) const {
    ProjectArgs project{};
    project.matmul = Matmul(packed_.w, x_codes_ + begin * packed_.w.k_padded, packed_.w.k_padded, end - begin, blocks);
    if (config_.x_mode == CodeMode::kDynamicRow) {
      project.row_scale = x_scale_ + begin;
      project.row_zero_point = x_zero_point_ + begin;
    }
    project.multiplier = packed_.x_multiplier.data();
    project.bias = packed_.bias.data();
    project.p = p_ + begin * columns_;
    project.p_stride = columns_;
    (packed_.w.format == PackedFormat::kS4Blocks ? kernels_.project_s4 : kernels_.project)(project);
  }

  static MatmulArgs Matmul(const PackedMatrix& matrix, const uint8_t* a, int64_t a_stride, int64_t rows,
                           const Blocks& blocks) {
    MatmulArgs matmul{};
    matmul.a = a;
    matmul.a_stride = a_stride;
    matmul.rows = rows;
    matmul.weights = matrix.weights.data();
    matmul.k_padded = matrix.k_padded;
    matmul.multipliers = matrix.multipliers.size() == 0 ? nullptr : matrix.multipliers.data();
    matmul.group_size = matrix.group_size;
    matmul.start = matrix.start.data();
    matmul.block_begin = blocks.begin;
    matmul.block_end = blocks.end;
    return matmul;
  }

  void Step(const Blocks& blocks) const {
    RecurrentArgs recurrent{};
    recurrent.matmul = Matmul(packed_.r, CodesBefore(step_), units_padded_, active_ * h_planes_, blocks);
    if (h_planes_ == 2) recurrent.matmul.start = no_start_;
    recurrent.acc = acc_;
    recurrent.acc_stride = columns_;
    recurrent.descending = step_ % 2 != 0;
    Multiply(packed_.r, recurrent);
    if (packed_.r.wide != nullptr) AddWideColumns(blocks);
    if (h_planes_ == 2) JoinStep(blocks);
    if (!table_kernel_) return;
    if (args_.bytes != nullptr) {
      ByteCells(blocks);
    } else {
      TableCells(blocks);
    }
    if (h_planes_ == 2) QuantizeUnits(blocks.begin * kBlockUnits, std::min(blocks.end * kBlockUnits, hidden_));
    CopyCodes(blocks.begin * kBlockUnits, std::min(blocks.end * kBlockUnits, hidden_));
  }

  // With 16-bit codes the products go into the pre-activations, and the cells get none.
  void JoinStep(const Blocks& blocks) const {
    JoinArgs join = Join(packed_.r, acc_, active_, blocks);
    join.zero_point = h_zero_point_;
    if (config_.h_mode == CodeMode::kDynamicRow) join.row_scale = h_scale_;
    join.multiplier = packed_.h_multiplier.data();
    join.bias = p_step_;
    join.bias_stride = columns_;
    join.p = p_step_;
    kernels_.join(join);
  }

  void QuantizeUnits(int64_t begin, int64_t end) const {
    for (int64_t r = 0; r < active_; ++r) {
      Quantize(y_rows_[r] + begin, end - begin, config_.h_scale, static_cast<int32_t>(config_.h_zero_point), h_planes_,
               CodesAfter(step_) + r * h_planes_ * units_padded_ + begin, units_padded_);
    }
  }

  // Adds the sums of the columns of eight bits. A block of them that belongs to two parts is computed by both.
  void AddWideColumns(const Blocks& blocks) const {
    const PackedMatrix& wide = *packed_.r.wide;
    const std::vector<int32_t>& columns = packed_.r.wide_columns;
    const int32_t begin = static_cast<int32_t>(blocks.begin * kBlockColumns);
    const int32_t end = static_cast<int32_t>(blocks.end * kBlockColumns);
    const int64_t first = std::lower_bound(columns.begin(), columns.end(), begin) - columns.begin();
    const int64_t last = std::lower_bound(columns.begin(), columns.end(), end) - columns.begin();
    alignas(kAlignment) int32_t sums[kWideRows * kBlockColumns];
    for (int64_t block = first / kBlockColumns; block * kBlockColumns < last; ++block) {
      for (int64_t row = 0; row < active_ * h_planes_; row += kWideRows) {
        const int64_t rows = std::min(kWideRows, active_ * h_planes_ - row);
        RecurrentArgs recurrent{};
        recurrent.matmul = Matmul(wide, CodesBefore(step_) + row * units_padded_, units_padded_, rows, {0, 1});
        recurrent.matmul.weights = wide.weights.data() + block * PackedBytes(wide.format, wide.k, kBlockUnits);
        recurrent.acc = sums;
        recurrent.acc_stride = kBlockColumns;
        recurrent.descending = step_ % 2 != 0;
        kernels_.recurrent(recurrent);
        const int64_t from = std::max(first, block * kBlockColumns);
        const int64_t to = std::min(last, (block + 1) * kBlockColumns);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t j = from; j < to; ++j) {
            acc_[(row + r) * columns_ + columns[static_cast<size_t>(j)]] += sums[r * kBlockColumns + j % kBlockColumns];
          }
        }
      }
    }
  }

  void CopyCodes(int64_t begin, int64_t end) const {
    if (args_.y_codes == nullptr) return;
    for (int64_t r = 0; r < active_; ++r) {
      std::memcpy(args_.y_codes + sequences_.Position(step_, r) * hidden_ + begin,
                  CodesAfter(step_) + r * units_padded_ + begin, static_cast<size_t>(end - begin));
    }
  }

  void TableCells(const Blocks& blocks) const {
    TableCellArgs cell{};
    cell.rows = active_;
    cell.units = hidden_;
    cell.block_begin = blocks.begin;
    cell.block_end = blocks.end;
    cell.acc = h_planes_ == 2 ? no_acc_ : acc_;
    cell.acc_stride = columns_;
    cell.p = p_step_;
    cell.p_stride = columns_;
    cell.h_multiplier = packed_.h_multiplier.data();
    for (int64_t g = 0; g < kGates; ++g) {
      cell.gate_min[g] = config_.gates[g].min;
      cell.gate_max[g] = config_.gates[g].max;
      cell.gate_table[g] = args_.gate_table + config_.gates[g].table_offset;
    }
    cell.cell_max = config_.cell_max;
    cell.cell_table = args_.cell_table;
    cell.cell_table_size = static_cast<int32_t>(args_.cell_table_size);
    cell.linear = args_.linear;
    cell.h_scale = config_.h_scale;
    cell.h_zero_point = h_planes_ == 2 ? 0 : static_cast<int32_t>(config_.h_zero_point);
    cell.c = c_;
    cell.c_stride = units_padded_;
    cell.y = y_rows_;
    cell.h = h_planes_ == 2 ? h_of_eight_ : CodesAfter(step_);
    cell.h_stride = units_padded_;
    kernels_.table_cell(cell);
  }

  void ByteCells(const Blocks& blocks) const {
    GridBytesArgs cell{};
    cell.rows = active_;
    cell.units = hidden_;
    cell.block_begin = blocks.begin;
    cell.block_end = blocks.end;
    cell.acc = acc_;
    cell.acc_stride = columns_;
    cell.p = p_step_;
    cell.p_stride = columns_;
    cell.h_multiplier = packed_.h_multiplier.data();
    cell.bias = packed_.last_bias.data();
    cell.form = args_.bytes;
    cell.c = c_bytes_;
    cell.c_stride = units_padded_;
    cell.y = y_rows_;
    cell.h = CodesAfter(step_);
    cell.h_stride = units_padded_;
    kernels_.grid_bytes(cell);
  }

  void GenericCells() {
    for (int64_t r = 0; r < active_; ++r) {
      GenericStepArgs step{};
      step.units = hidden_;
      step.acc = (h_planes_ == 2 ? no_acc_ : acc_) + r * columns_;
      step.p = p_step_ + r * columns_;
      step.h_multiplier = packed_.h_multiplier.data();
      step.h_row_scale = config_.h_mode == CodeMode::kDynamicRow && h_planes_ == 1 ? h_scale_ + r : nullptr;
      step.peephole = packed_.peephole.size() == 0 ? nullptr : packed_.peephole.data();
      step.gate_table = args_.gate_table;
      step.cell_table = args_.cell_table;
      step.cell_table_size = args_.cell_table_size;
      step.c = c_ + r * units_padded_;
      step.y = y_rows_[r];
      GenericStep(config_, step);
      QuantizeHidden(r, y_rows_[r], CodesAfter(step_));
    }
    CopyCodes(0, hidden_);
  }

  // With lengths, results pass a selection that keeps no sign of zero.
  void ForgetSignsOfZeros() {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t t = 0; t < (args_.y != nullptr ? sequences_.length(r) : 0); ++t) {
        float* row = args_.y + (t * args_.batch + sequences_.batch_index(r)) * hidden_;
        for (int64_t unit = 0; unit < hidden_; ++unit) row[unit] += 0.0f;
      }
      if (args_.y == nullptr && sequences_.length(r) > 0) {
        for (int64_t unit = 0; unit < hidden_; ++unit) y_rows_[r][unit] += 0.0f;
      }
      for (int64_t unit = 0; unit < hidden_; ++unit) c_[r * units_padded_ + unit] += 0.0f;
    }
  }

  // y_rows_[r] still points to the row of r's last step.
  void WriteFinalStates() {
    const float scale = config_.cell_is_quantized() ? config_.cell_scale : 1.0f;
    if (args_.bytes != nullptr) {
      for (int64_t i = 0; i < rows_ * units_padded_; ++i) c_[i] = static_cast<float>(c_bytes_[i]);
    }
    if (args_.sequence_lens != nullptr) ForgetSignsOfZeros();
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t offset = sequences_.batch_index(r) * hidden_;
      const size_t bytes = static_cast<size_t>(hidden_) * sizeof(float);
      if (args_.y_h != nullptr) {
        if (sequences_.length(r) == 0) {
          std::memset(args_.y_h + offset, 0, bytes);
        } else {
          std::memcpy(args_.y_h + offset, y_rows_[r], bytes);
        }
      }
      if (args_.y_c == nullptr) continue;
      for (int64_t unit = 0; unit < hidden_; ++unit) {
        args_.y_c[offset + unit] = sequences_.length(r) == 0 ? 0.0f : c_[r * units_padded_ + unit] * scale;
      }
    }
  }

  const LstmConfig& config_;
  const KernelTable& kernels_;
  const PackedLstm& packed_;
  const LstmArgs& args_;
  SequenceRows sequences_;
  const int64_t rows_;
  const int64_t hidden_;
  const int64_t blocks_;
  const int64_t columns_;
  const int64_t units_padded_;
  const int64_t x_planes_;
  const int64_t h_planes_;
  const int64_t projected_rows_;
  const int64_t chunk_steps_;
  const bool table_kernel_;
  int64_t most_parts_ = 1;

  // The running phase; written by the leader between phases.
  Phase phase_ = Phase::kStep;
  int64_t chunk_begin_ = 0;
  int64_t chunk_end_ = 0;
  int64_t chunk_rows_ = 0;
  int64_t step_ = 0;
  int64_t active_ = 0;
  float* p_step_ = nullptr;

  uint8_t* x_codes_ = nullptr;
  float* x_scale_ = nullptr;
  int32_t* x_zero_point_ = nullptr;  // of every row of bytes
  int32_t* x_acc_ = nullptr;
  float* p_ = nullptr;
  int32_t* acc_ = nullptr;
  int32_t* no_acc_ = nullptr;
  int32_t* no_start_ = nullptr;
  float* c_ = nullptr;
  int8_t* c_bytes_ = nullptr;  // instead of c_ in the form of bytes
  uint8_t* h_[2] = {};
  uint8_t* h_of_eight_ = nullptr;    // written by the cells and not used with 16-bit codes
  int32_t* h_zero_point_ = nullptr;  // of every row of bytes
  float* h_scale_ = nullptr;
  float** y_rows_ = nullptr;
  float* y_scratch_ = nullptr;
  float* limited_h_ = nullptr;
  Team* team_ = nullptr;
};

// How the work of a call is divided; results do not depend on it.
struct Division {
  int64_t groups = 1;  // of rows, each run by one thread at a time
  int64_t parts = 1;   // of the columns of each step, at most
};

// `members` threads took part in the last call.
Division Divide(const LstmConfig& config, const PackedLstm& packed, const LstmArgs& args, int64_t members) {
  static const int64_t processors = std::max<int64_t>(1, std::thread::hardware_concurrency());
  const double r_bytes = static_cast<double>(packed.r.bytes());
  const double w_bytes = static_cast<double>(packed.w.bytes());
  const double batch = static_cast<double>(args.batch);
  const double columns = static_cast<double>(packed.r.start.size());
  const double products = batch * columns / kProductsPerNanosecond;  // of one k
  // Nanoseconds of one step: a product either streams its weights or is bound by its multiplications.
  const double recurrent =
      std::max(r_bytes / kBytesPerNanosecond, static_cast<double>(packed.r.k * Planes(config.h_bits)) * products);
  const double projection = std::max(w_bytes / kBytesPerNanosecond / static_cast<double>(args.time),
                                     static_cast<double>(packed.w.k * Planes(config.x_bits)) * products);
  Division division;
  if (processors == 1 || (recurrent + projection) * static_cast<double>(args.time) < kSharedCall) return division;
  const int64_t threads = std::min(members, processors);
  if (threads > 1 && args.batch >= kRowsOfAGroup * threads && r_bytes <= kPrivateWeights) {
    division.groups = threads;
  } else if (args.time == 1 || recurrent >= kSharedStep) {
    const double most = (args.time == 1 ? recurrent + projection : recurrent) / kPartOfAStep;
    division.parts = std::min({processors, Team::kMaxMembers, std::max<int64_t>(1, static_cast<int64_t>(most))});
  }
  return division;
}

}  // namespace

PackedLstm PackLstm(const LstmConfig& config, const KernelTable& kernels, const LstmParameters& parameters) {
  const int64_t hidden = config.hidden_size;
  const auto columns = [hidden](const float* values, int64_t gates) {
    AlignedArray<float> packed(BlockCount(hidden) * kBlockColumns);
    PackColumns(values, gates, hidden, packed.data());
    return packed;
  };
  PackedLstm packed;
  // Rows of codes or of bytes that have a zero point each multiply the start values of zero point 1 by their own.
  const bool x_rows = config.x_mode == CodeMode::kDynamicRow || config.x_bits == 16;
  const int64_t x_zero_point = x_rows ? 1 : config.x_zero_point;
  const int64_t h_zero_point = config.h_bits == 16 ? 1 : config.h_zero_point;
  const bool four = kernels.recurrent_s4 != nullptr;
  packed.w =
      PackMatrix(kernels.format, four ? Width::kFour : Width::kEight, parameters.w, static_cast<int32_t>(x_zero_point));
  packed.r = PackMatrix(kernels.format, four ? Width::kMixed : Width::kEight, parameters.r,
                        static_cast<int32_t>(h_zero_point));
  packed.x_multiplier = columns(parameters.x_multiplier, kGates);
  packed.h_multiplier = columns(parameters.h_multiplier, kGates);
  packed.bias = columns(parameters.bias, kGates);
  if (config.arithmetic == Arithmetic::kGrid32) {
    packed.last_bias = std::move(packed.bias);
    packed.bias = AlignedArray<float>(packed.last_bias.size());
    std::fill(packed.bias.data(), packed.bias.data() + packed.bias.size(), 0.0f);
  }
  if (parameters.peephole != nullptr) packed.peephole = columns(parameters.peephole, 3);
  return packed;
}

bool FindLinearTables(const LstmConfig& config, const float* gate_table, const float* cell_table,
                      int64_t cell_table_size, LinearTables* linear) {
  if (!HasTablesOnly(config)) return false;
  TableExtent tables{};
  for (int64_t g = 0; g < kGates; ++g) {
    tables.gate_table[g] = gate_table + config.gates[g].table_offset;
    tables.gate_max[g] = config.gates[g].max;
  }
  tables.cell_table = cell_table;
  tables.cell_table_size = cell_table_size;
  return FindLinearTables(tables, linear);
}

void RunLstm(const LstmConfig& config, const KernelTable& kernels, const PackedLstm& packed, const LstmArgs& args,
             Scratch* scratch, Parallel* parallel) {
  const Division division = Divide(config, packed, args, scratch->members());
  if (division.groups > 1) {
    struct Groups {
      const LstmConfig& config;
      const KernelTable& kernels;
      const PackedLstm& packed;
      const LstmArgs& args;
      Scratch* scratch;
      int64_t count;

      LstmRun Group(int64_t index) const { return LstmRun(config, kernels, packed, args, index, count); }
    };
    Groups groups{config, kernels, packed, args, scratch, division.groups};
    // A largest and a smallest one: fewer rows take more steps at a time, and may need more memory.
    const int64_t bytes = std::max(groups.Group(0).ScratchBytes(), groups.Group(groups.count - 1).ScratchBytes());
    scratch->Reset(groups.count, bytes);
    parallel->For(
        groups.count,
        [](void* user, size_t index) {
          const Groups& all = *static_cast<const Groups*>(user);
          LstmRun run(all.config, all.kernels, all.packed, all.args, static_cast<int64_t>(index), all.count);
          run.TakeScratch(all.scratch->Share(static_cast<int64_t>(index)));
          run.Run();
        },
        &groups);
    return;
  }
  LstmRun run(config, kernels, packed, args, 0, 1);
  scratch->Reset(1, run.ScratchBytes());
  run.TakeScratch(scratch->Share(0));
  if (division.parts == 1) {
    run.Run();
    return;
  }
  struct Work {
    LstmRun* run;
    int64_t parts;
    Team team;
  };
  Work work{&run, division.parts, Team(LstmRun::Part, &run)};
  parallel->For(
      work.parts,
      [](void* user, size_t) {
        Work& shared = *static_cast<Work*>(user);
        if (!shared.team.Lead()) return shared.team.Help();
        shared.run->Run(&shared.team, shared.parts);
        shared.team.Finish();
      },
      &work);
  scratch->SetMembers(work.team.Members());
}

}  // namespace rnnqc
