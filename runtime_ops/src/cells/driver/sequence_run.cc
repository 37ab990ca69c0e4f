#include "cells/driver/sequence_run.h"

#include <cmath>
#include <cstring>

#include "cells/driver/activations.h"
#include "cells/driver/row_format.h"

namespace rnnqc {
namespace {

// Pre-activations of the input are computed for as many steps at once as fit here, or into half the bytes of W.
constexpr int64_t kProjectionBytes = 512 * 1024;
// The projection takes so many rows at a time that their results stay in the second-level cache: at least
// kProjectedRows, and about kProjectedProducts products. It takes all rows at once if W does not stay there.
constexpr int64_t kProjectedRows = 32;
constexpr int64_t kProjectedProducts = 1 << 20;
constexpr int64_t kNearWeights = 1024 * 1024;
// Rows whose sums of wide columns are taken at a time.
constexpr int64_t kWideRows = 16;

// Codes of 16 bits are kept as two rows of bytes, the upper ones first.
int64_t Planes(int64_t bits) { return bits == 16 ? 2 : 1; }

float DynamicScale(float largest, int64_t bits) {
  const float m = std::min(std::max(largest, kSmallestMagnitude), kLargestMagnitude);
  return m / (bits == 16 ? 32767.0f : 127.0f);
}

// The number of rows to project at a time.
int64_t ProjectedRows(const PackedMatrix& w, int64_t columns) {
  if (w.bytes() > kNearWeights) return INT64_MAX;
  return std::max(kProjectedRows, kProjectedProducts / (w.k_padded * columns));
}

// The number of steps whose pre-activations are computed at once.
int64_t ChunkSteps(const PackedMatrix& w, int64_t columns, int64_t rows, int64_t time) {
  const int64_t step_bytes = rows * columns * static_cast<int64_t>(sizeof(float));
  return std::max<int64_t>(1, std::min(time, std::max(kProjectionBytes, w.bytes() / 2) / step_bytes));
}

// The zero points of the rows of bytes.
void SplitZeroPoint(int32_t zero_point, int64_t planes, int32_t* parts) {
  if (planes == 2) *parts++ = zero_point >> 8;
  *parts = planes == 2 ? zero_point & 255 : zero_point;
}

// Joins the sums of the columns of a matrix; the caller adds the rest.
JoinArgs Join(const PackedMatrix& matrix, const int32_t* acc, int64_t rows, int64_t block_begin, int64_t block_end) {
  JoinArgs join{};
  join.rows = rows;
  join.block_begin = block_begin;
  join.block_end = block_end;
  join.acc = acc;
  join.acc_stride = SumStride(matrix.start.size());
  join.start = matrix.start.data();
  join.p_stride = SumStride(matrix.start.size());
  return join;
}

}  // namespace

SequenceRun::SequenceRun(const CellConfig& config, const KernelTable& kernels, const PackedCell& packed,
                         const CellArgs& args, int64_t first, int64_t stride)
    : SequenceDriver(config, kernels, args, first, stride),
      packed_(packed),
      blocks_(BlockCount(hidden_)),
      columns_(ColumnCount(hidden_, config.gate_count)),
      stride_(SumStride(columns_)),
      units_padded_(blocks_ * kBlockUnits),
      x_planes_(Planes(config.x_bits)),
      h_planes_(Planes(config.h_bits)),
      part_blocks_(config.gate_count * kBlockUnits % kBlockColumns == 0 ? 1 : kBlockColumns / kBlockUnits),
      projected_rows_(ProjectedRows(packed.w, columns_)) {
  chunk_steps_ = ChunkSteps(packed.w, columns_, rows_, args.time);
}

void SequenceRun::VisitDriverScratch(ScratchPieces& pieces) {
  const int64_t chunk_rows = chunk_steps_ * rows_;
  pieces(x_codes_, chunk_rows * x_planes_ * packed_.w.k_padded);
  pieces(x_scale_, chunk_rows);
  pieces(x_zero_point_, chunk_rows * x_planes_);
  pieces(x_scaled_, args_.x_factor == nullptr ? 0 : chunk_rows * packed_.w.k);
  pieces(x_acc_, x_planes_ == 1 ? 0 : std::min(projected_rows_, chunk_rows) * x_planes_ * stride_);
  pieces(p_, chunk_rows * stride_);
  pieces(acc_, rows_ * h_planes_ * stride_);
  pieces(no_start_, x_planes_ + h_planes_ == 2 ? 0 : columns_);
  pieces(h_[0], rows_ * h_planes_ * units_padded_);
  pieces(h_[1], rows_ * h_planes_ * units_padded_);
  pieces(h_zero_point_, rows_ * h_planes_);
  pieces(h_scale_, rows_);
  pieces(y_rows_, rows_);
  pieces(y_scratch_, args_.y == nullptr ? rows_ * hidden_ : 0);
  pieces(limited_h_, hidden_);
  const int64_t losses = MayLose() ? 2 * rows_ : 0;
  pieces(loss_codes_, losses * units_padded_);
  pieces(loss_scale_, losses);
  pieces(loss_acc_, losses * stride_);
  pieces(loss_, losses == 0 ? 0 : hidden_);
}

void SequenceRun::RunWith(Team* team, int64_t most_parts) {
  team_ = team;
  most_parts_ = std::min(most_parts, (blocks_ + part_blocks_ - 1) / part_blocks_);
  Run();
}

void SequenceRun::StartStep(int64_t row) {
  p_step_ = p_ + row * stride_;
  for (int64_t r = 0; r < active_; ++r) {
    y_rows_[r] = args_.y == nullptr ? y_scratch_ + r * hidden_ : args_.y + sequences_.Position(step_, r) * hidden_;
  }
  // The parts of a step read the pre-activations of their own columns only.
  projects_ = step_ == chunk_begin_;
}

void SequenceRun::InitializeCodes() {
  FillZeroPoints(config_.h_zero_point, h_zero_point_);
  if (args_.initial_h == nullptr) {
    uint8_t* h = CodesBefore(0);
    for (int64_t i = 0; i < rows_ * h_planes_; ++i) {
      std::memset(h + i * units_padded_, h_zero_point_[i], static_cast<size_t>(units_padded_));
    }
    std::fill(h_scale_, h_scale_ + rows_, DynamicScale(0.0f, config_.h_bits));
  }
  if (x_planes_ + h_planes_ > 2) std::fill(no_start_, no_start_ + columns_, 0);
  if (MayLose()) std::fill(loss_codes_, loss_codes_ + 2 * rows_ * units_padded_, uint8_t{0});
}

void SequenceRun::FillZeroPoints(int64_t zero_point, int32_t* parts) const {
  for (int64_t r = 0; r < rows_; ++r) {
    SplitZeroPoint(static_cast<int32_t>(zero_point), h_planes_, parts + r * h_planes_);
  }
}

void SequenceRun::Quantize(const float* values, int64_t n, float scale, int32_t zero_point, int64_t planes,
                           uint8_t* codes, int64_t stride) const {
  if (planes == 2) {
    kernels_.quantize_row_16(values, n, scale, zero_point, codes, codes + stride);
  } else {
    kernels_.quantize_row(values, n, scale, zero_point, codes);
  }
}

void SequenceRun::QuantizeInitialHidden() {
  const bool is_dynamic = config_.h_mode == CodeMode::kDynamicRow;
  for (int64_t r = 0; r < (args_.initial_h == nullptr ? 0 : rows_); ++r) {
    const float* values = InitialRow(r);
    const float largest = is_dynamic || MayLose() ? kernels_.max_abs(values, hidden_) : 0.0f;
    first_loses_ = first_loses_ || (MayLose() && largest > config_.h_bound);
    if (is_dynamic && largest > kLargestMagnitude) {
      LimitHidden(values, hidden_, limited_h_);
      values = limited_h_;
    }
    QuantizeInitialRow(r, values, largest);
  }
  for (int64_t r = 0; r < (first_loses_ ? rows_ : 0); ++r) {
    LimitHidden(InitialRow(r), hidden_, limited_h_);
    QuantizeLoss(r, limited_h_, config_.h_scale, config_.h_zero_point);
  }
}

void SequenceRun::QuantizeInitialRow(int64_t r, const float* values, float largest) const {
  float scale = config_.h_scale;
  if (config_.h_mode == CodeMode::kDynamicRow) scale = h_scale_[r] = DynamicScale(largest, config_.h_bits);
  QuantizeWith(r, values, scale, config_.h_zero_point, CodesBefore(0));
}

void SequenceRun::QuantizeLoss(int64_t r, const float* values, float unit_scale, int64_t zero) const {
  const int32_t zero_point = static_cast<int32_t>(zero);
  const float high = config_.h_bound;
  const float low = std::min(-static_cast<float>(zero_point) * unit_scale, -high);
  for (int64_t unit = 0; unit < hidden_; ++unit) {
    const float lost = std::min(std::max(values[unit], low), high) - values[unit];
    loss_[unit] = lost / unit_scale;
  }
  uint8_t* codes = loss_codes_ + 2 * r * units_padded_;
  float* scale = loss_scale_ + (h_planes_ == 2 ? r : 2 * r);
  scale[0] = DynamicScale(kernels_.max_abs(loss_, hidden_), config_.h_bits);
  Quantize(loss_, hidden_, scale[0], zero_point, h_planes_, codes, units_padded_);
  if (h_planes_ == 2) return;
  // The rounding error of 8 bits is quantized to 8 more.
  for (int64_t unit = 0; unit < hidden_; ++unit) {
    const float held = static_cast<float>(codes[unit] - zero_point) * scale[0];
    loss_[unit] = loss_[unit] - held;
  }
  scale[1] = DynamicScale(kernels_.max_abs(loss_, hidden_), config_.h_bits);
  Quantize(loss_, hidden_, scale[1], zero_point, 1, codes + units_padded_, units_padded_);
}

void SequenceRun::TakeLoss(const Product& product, const Blocks& units, float* p) const {
  Product loss = product;
  loss.codes = loss_codes_;
  loss.acc = loss_acc_;
  Multiply(loss, units, 2 * active_);
  const Blocks blocks = ColumnBlocks(units, product.gates);
  const int64_t begin = blocks.begin * kBlockColumns;
  const int64_t end = blocks.end * kBlockColumns;
  const int64_t stride = product.stride();
  const int32_t* start = product.matrix.start.data();
  const bool is_wide = h_planes_ == 2;
  for (int64_t r = 0; r < active_; ++r) {
    const int32_t* first = loss_acc_ + 2 * r * stride;
    const int32_t* second = first + stride;
    float* row = p + r * stride;
    for (int64_t j = begin; j < end; ++j) {
      if (is_wide) {
        const int32_t* zero_point = product.zero_point + 2 * r;
        const float high = static_cast<float>(first[j] + zero_point[0] * start[j]) * 256.0f;
        const float sums = (high + static_cast<float>(second[j] + zero_point[1] * start[j])) * loss_scale_[r];
        row[j] = row[j] - sums * product.multiplier[j];
      } else {
        const float coarse = static_cast<float>(first[j]) * loss_scale_[2 * r];
        const float fine = static_cast<float>(second[j]) * loss_scale_[2 * r + 1];
        row[j] = (row[j] - coarse * product.multiplier[j]) - fine * product.multiplier[j];
      }
    }
  }
}

void SequenceRun::LimitHidden(const float* values, int64_t n, float* limited) {
  // In comparisons that compilers turn into vector instructions.
  for (int64_t i = 0; i < n; ++i) {
    const float value = values[i] + 0.0f;
    const float raised = value < -kLargestMagnitude ? -kLargestMagnitude : value;
    const float lowered = raised > kLargestMagnitude ? kLargestMagnitude : raised;
    limited[i] = value == value ? lowered : 0.0f;
  }
}

void SequenceRun::CopyHidden(const float* values, int64_t n, float* copy) {
  for (int64_t i = 0; i < n; ++i) {
    const float value = values[i] + 0.0f;
    copy[i] = value == value ? value : 0.0f;
  }
}

void SequenceRun::QuantizeHidden(int64_t r, const float* values, float scale, int64_t zero_point, uint8_t* codes,
                                 float* row_scale) const {
  if (config_.h_mode == CodeMode::kDynamicRow) {
    scale = row_scale[r] = DynamicScale(kernels_.max_abs(values, hidden_), config_.h_bits);
  }
  QuantizeWith(r, values, scale, zero_point, codes);
}

void SequenceRun::QuantizeWith(int64_t r, const float* values, float scale, int64_t zero_point, uint8_t* codes) const {
  Quantize(values, hidden_, scale, static_cast<int32_t>(zero_point), h_planes_, RowOf(codes, r), units_padded_);
  LimitCodes(config_.h_codes, hidden_, RowOf(codes, r));
}

void SequenceRun::QuantizeHidden(int64_t r, const float* values, uint8_t* codes) const {
  QuantizeHidden(r, values, config_.h_scale, config_.h_zero_point, codes, h_scale_);
}

// Codes of the chunk, in the order in which its steps and rows run.
void SequenceRun::StartChunk() {
  chunk_rows_ = RowsBefore(chunk_end_);
  if (chunk_rows_ * packed_.w.k < kSharedQuantization) {
    QuantizeSteps(chunk_begin_, chunk_end_);
  } else {
    RunPhase(kQuantize);
  }
  if (config_.has_x_scales()) x_scale_max_ = *std::max_element(x_scale_, x_scale_ + chunk_rows_);
}

// Rows of the chunk's steps before this one.
int64_t SequenceRun::RowsBefore(int64_t step) const {
  if (!has_lengths()) return (step - chunk_begin_) * rows_;
  int64_t rows = 0;
  for (int64_t earlier = chunk_begin_; earlier < step; ++earlier) rows += sequences_.Active(earlier);
  return rows;
}

void SequenceRun::QuantizeSteps(int64_t begin, int64_t end) {
  int64_t row = RowsBefore(begin);
  for (int64_t step = begin; step < end; ++step) {
    const int64_t active = sequences_.Active(step);
    for (int64_t r = 0; r < active; ++r) QuantizeInput(sequences_.Position(step, r), row++);
  }
}

void SequenceRun::QuantizeInput(int64_t position, int64_t row) {
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
  if (config_.x_mode == CodeMode::kRowCodes) {
    const int8_t* x = args_.x_rows + position * size;
    for (int64_t i = 0; i < size; ++i) codes[i] = static_cast<uint8_t>(x[i] + kRowZeroPoint);
    x_zero_point_[row] = kRowZeroPoint;
    x_scale_[row] = args_.x_scale[position];
    return;
  }
  const InputRow x = ReadInput(args_, position, x_scaled_ + row * size);
  RowFormat format{config_.x_scale, static_cast<int32_t>(config_.x_zero_point)};
  if (config_.x_mode == CodeMode::kDynamicRow) {
    MinMax range{};
    for (size_t i = 0; i < x.count; ++i) {
      const MinMax found = kernels_.min_max(x.parts[i].data, x.parts[i].size);
      range = {std::min(range.min, found.min), std::max(range.max, found.max)};
    }
    format = DynamicRowFormat(range, config_.x_bits);
    x_scale_[row] = format.scale;
  }
  SplitZeroPoint(format.zero_point, x_planes_, x_zero_point_ + row * x_planes_);
  uint8_t* part_codes = codes;
  for (size_t i = 0; i < x.count; ++i) {
    Quantize(x.parts[i].data, x.parts[i].size, format.scale, format.zero_point, x_planes_, part_codes, stride);
    part_codes += x.parts[i].size;
  }
  LimitCodes(config_.x_codes, size, codes);
}

void SequenceRun::LimitCodes(const CodeRange& range, int64_t n, uint8_t* codes) {
  if (range.low == 0 && range.high == UINT8_MAX) return;
  for (int64_t i = 0; i < n; ++i) codes[i] = std::min(std::max(codes[i], range.low), range.high);
}

void SequenceRun::Project(const Blocks& units) const {
  const Blocks blocks = ColumnBlocks(units, config_.gate_count);
  for (int64_t row = 0; row < chunk_rows_; row += projected_rows_) {
    const int64_t end = std::min(row + projected_rows_, chunk_rows_);
    if (x_planes_ == 2) {
      ProjectPlanes(row, end, blocks);
    } else {
      ProjectRows(row, end, blocks);
    }
  }
}

void SequenceRun::ProjectPlanes(int64_t begin, int64_t end, const Blocks& blocks) const {
  const int64_t stride = packed_.w.k_padded;
  RecurrentArgs sums{};
  sums.matmul = Matmul(packed_.w, x_codes_ + 2 * begin * stride, stride, 2 * (end - begin), blocks.begin, blocks.end);
  sums.matmul.start = no_start_;
  sums.acc = x_acc_;
  sums.acc_stride = stride_;
  MultiplyRows(kernels_, packed_.w, sums);
  if (packed_.w.wide != nullptr) {
    MultiplyWideColumns(packed_.w, sums.matmul.a, stride, sums.matmul.rows, blocks,
                        [&](int64_t row, int64_t column, int32_t sum) { x_acc_[row * stride_ + column] += sum; });
  }
  JoinArgs join = Join(packed_.w, x_acc_, end - begin, blocks.begin, blocks.end);
  join.zero_point = x_zero_point_ + 2 * begin;
  if (config_.has_x_scales()) join.row_scale = x_scale_ + begin;
  join.multiplier = packed_.x_multiplier.data();
  join.bias = packed_.bias.data();
  join.p = p_ + begin * stride_;
  kernels_.join(join);
}

void SequenceRun::ProjectRows(int64_t begin, int64_t end, const Blocks& blocks) const {
  const int64_t stride = packed_.w.k_padded;
  ProjectArgs project{};
  project.matmul = Matmul(packed_.w, x_codes_ + begin * stride, stride, end - begin, blocks.begin, blocks.end);
  project.matmul.descending = Descending();
  if (config_.has_x_scales()) {
    project.row_scale = x_scale_ + begin;
    project.row_zero_point = x_zero_point_ + begin;
  }
  project.multiplier = packed_.x_multiplier.data();
  project.bias = packed_.bias.data();
  project.p = p_ + begin * stride_;
  project.p_stride = stride_;
  rnnqc::ProjectRows(kernels_, packed_.w, project);
  if (packed_.w.wide == nullptr) return;
  // The kernel projected zeros for these columns; this does the same with their weights.
  MultiplyWideColumns(packed_.w, project.matmul.a, stride, project.matmul.rows, blocks,
                      [&](int64_t row, int64_t column, int32_t sum) {
                        const int32_t start = project.matmul.start[column];
                        float value = 0.0f;
                        if (project.row_scale == nullptr) {
                          value = static_cast<float>(start + sum);
                        } else {
                          value = static_cast<float>(project.row_zero_point[row] * start + sum);
                          value *= project.row_scale[row];
                        }
                        project.p[row * stride_ + column] = value * project.multiplier[column] + project.bias[column];
                      });
}

void SequenceRun::JoinPlanes(const Product& product, const Blocks& units, const float* bias, int64_t bias_stride,
                             float* p) const {
  const Blocks blocks = ColumnBlocks(units, product.gates);
  JoinArgs join = Join(product.matrix, product.acc, active_, blocks.begin, blocks.end);
  join.zero_point = product.zero_point;
  join.row_scale = product.row_scale;
  join.multiplier = product.multiplier;
  join.bias = bias;
  join.bias_stride = bias_stride;
  join.p = p;
  kernels_.join(join);
}

// take(row, column, sum) for the wide columns of a matrix. A block of them that belongs to two parts is computed by
// both.
template <typename Take>
void SequenceRun::MultiplyWideColumns(const PackedMatrix& matrix, const uint8_t* codes, int64_t codes_stride,
                                      int64_t byte_rows, const Blocks& blocks, const Take& take) const {
  const PackedMatrix& wide = *matrix.wide;
  const std::vector<int32_t>& columns = matrix.wide_columns;
  const int32_t begin = static_cast<int32_t>(blocks.begin * kBlockColumns);
  const int32_t end = static_cast<int32_t>(blocks.end * kBlockColumns);
  const int64_t first = std::lower_bound(columns.begin(), columns.end(), begin) - columns.begin();
  const int64_t last = std::lower_bound(columns.begin(), columns.end(), end) - columns.begin();
  alignas(kAlignment) int32_t sums[kWideRows * kBlockColumns];
  for (int64_t block = first / kBlockColumns; block * kBlockColumns < last; ++block) {
    for (int64_t row = 0; row < byte_rows; row += kWideRows) {
      const int64_t rows = std::min(kWideRows, byte_rows - row);
      RecurrentArgs recurrent{};
      recurrent.matmul = Matmul(wide, codes + row * codes_stride, codes_stride, rows, 0, 1);
      recurrent.matmul.weights = wide.weights.data() + block * PackedBytes(wide.format, wide.k, kBlockUnits);
      recurrent.acc = sums;
      recurrent.acc_stride = kBlockColumns;
      recurrent.matmul.descending = Descending();
      MultiplyRows(kernels_, wide, recurrent);
      const int64_t from = std::max(first, block * kBlockColumns);
      const int64_t to = std::min(last, (block + 1) * kBlockColumns);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t j = from; j < to; ++j) {
          take(row + r, columns[static_cast<size_t>(j)], sums[r * kBlockColumns + j % kBlockColumns]);
        }
      }
    }
  }
}

void SequenceRun::AddWideColumns(const Product& product, const Blocks& blocks, int64_t byte_rows) const {
  MultiplyWideColumns(
      product.matrix, product.codes, units_padded_, byte_rows, blocks,
      [&](int64_t row, int64_t column, int32_t sum) { product.acc[row * product.stride() + column] += sum; });
}

void SequenceRun::CopyCodes(int64_t begin, int64_t end) const {
  if (args_.y_codes == nullptr) return;
  for (int64_t r = 0; r < active_; ++r) {
    std::memcpy(args_.y_codes + sequences_.Position(step_, r) * hidden_ + begin,
                CodesAfter(step_) + r * units_padded_ + begin, static_cast<size_t>(end - begin));
  }
}

}  // namespace rnnqc
