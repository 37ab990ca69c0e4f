#include "cells/lstm_cell.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "cells/generic_step.h"

namespace rnnqc {
namespace {

// Pre-activations of the input are computed for as many steps at once as fit here.
constexpr int64_t kProjectionBytes = 512 * 1024;
// Smallest share of a parallel projection.
constexpr int64_t kTaskRows = 16;
constexpr int64_t kTaskMultiplications = 1 << 20;

constexpr float kSmallestMagnitude = 0x1p-100f;
constexpr float kLargestMagnitude = 0x1p60f;

float DynamicScale(float largest) {
  const float m = std::min(std::max(largest, kSmallestMagnitude), kLargestMagnitude);
  return m / 127.0f;
}

struct RowGrid {
  float scale;
  int32_t zero_point;
};

// The grid of uint8 codes that holds 0 and the range of an input row.
RowGrid DynamicGrid(const MinMax& range) {
  const float a = std::max(range.min, -kLargestMagnitude);
  const float b = std::min(range.max, kLargestMagnitude);
  const float scale = std::max(b - a, kSmallestMagnitude) / 255.0f;
  const float zero_point = std::min(std::nearbyint((0.0f - a) / scale), 255.0f);
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

// One call of the operator. Batch rows are kept sorted by decreasing length, so that the rows still running at a step
// are the first `Active(step)` ones; `order_[r]` is the batch index of row r.
class LstmRun {
 public:
  LstmRun(const LstmConfig& config, const KernelTable& kernels, const PackedLstm& packed, const LstmArgs& args,
          Parallel* parallel)
      : config_(config),
        kernels_(kernels),
        packed_(packed),
        args_(args),
        parallel_(parallel),
        hidden_(config.hidden_size),
        columns_(BlockCount(config.hidden_size) * kBlockColumns),
        units_padded_(BlockCount(config.hidden_size) * kBlockUnits),
        chunk_steps_(std::max<int64_t>(
            1, std::min(args.time, kProjectionBytes / (args.batch * columns_ * static_cast<int64_t>(sizeof(float)))))),
        table_kernel_(UsesTableKernel(config, packed)) {}

  void Allocate(Scratch* scratch) {
    const int64_t batch = args_.batch;
    const int64_t rows = chunk_steps_ * batch;
    const int64_t y_rows = args_.y == nullptr ? batch * hidden_ : 0;
    scratch->Reset(2 * Scratch::BytesFor<int64_t>(batch) + Scratch::BytesFor<uint8_t>(rows * packed_.w.k_padded) +
                   Scratch::BytesFor<float>(rows) + Scratch::BytesFor<int32_t>(rows) +
                   Scratch::BytesFor<float>(rows * columns_) + Scratch::BytesFor<int32_t>(batch * columns_) +
                   Scratch::BytesFor<float>(batch * units_padded_) + Scratch::BytesFor<uint8_t>(batch * units_padded_) +
                   Scratch::BytesFor<float>(batch) + Scratch::BytesFor<float*>(batch) +
                   Scratch::BytesFor<float>(y_rows) + Scratch::BytesFor<float>(hidden_));
    order_ = scratch->Take<int64_t>(batch);
    lengths_ = scratch->Take<int64_t>(batch);
    x_codes_ = scratch->Take<uint8_t>(rows * packed_.w.k_padded);
    x_scale_ = scratch->Take<float>(rows);
    x_zero_point_ = scratch->Take<int32_t>(rows);
    p_ = scratch->Take<float>(rows * columns_);
    acc_ = scratch->Take<int32_t>(batch * columns_);
    c_ = scratch->Take<float>(batch * units_padded_);
    h_ = scratch->Take<uint8_t>(batch * units_padded_);
    h_scale_ = scratch->Take<float>(batch);
    y_rows_ = scratch->Take<float*>(batch);
    y_scratch_ = scratch->Take<float>(y_rows);
    limited_h_ = scratch->Take<float>(hidden_);
  }

  void Run() {
    SortByLength();
    InitializeStates();
    const int64_t steps = lengths_[0];
    for (int64_t first = 0; first < steps; first += chunk_steps_) {
      const int64_t last = std::min(first + chunk_steps_, steps);
      Project(first, last);
      int64_t row = 0;
      for (int64_t step = first; step < last; ++step) {
        const int64_t active = Active(step);
        Step(step, active, p_ + row * columns_);
        row += active;
      }
    }
    WriteFinalStates();
    ClearPadding();
  }

 private:
  void SortByLength() {
    for (int64_t b = 0; b < args_.batch; ++b) order_[b] = b;
    if (args_.sequence_lens != nullptr) {
      const int32_t* lens = args_.sequence_lens;
      std::sort(order_, order_ + args_.batch,
                [lens](int64_t a, int64_t b) { return lens[a] != lens[b] ? lens[a] > lens[b] : a < b; });
    }
    for (int64_t r = 0; r < args_.batch; ++r) {
      lengths_[r] = args_.sequence_lens == nullptr ? args_.time : args_.sequence_lens[order_[r]];
    }
  }

  int64_t Active(int64_t step) const {
    int64_t rows = args_.batch;
    while (rows > 0 && lengths_[rows - 1] <= step) --rows;
    return rows;
  }

  // Where row r's element of that step lies in X and Y, counted in rows of [time, batch].
  int64_t Position(int64_t step, int64_t r) const {
    const int64_t t = config_.direction == Direction::kForward ? step : lengths_[r] - 1 - step;
    return t * args_.batch + order_[r];
  }

  void InitializeStates() {
    std::memset(h_, static_cast<int>(config_.h_zero_point), static_cast<size_t>(args_.batch * units_padded_));
    std::memset(c_, 0, static_cast<size_t>(args_.batch * units_padded_) * sizeof(float));
    for (int64_t r = 0; r < args_.batch; ++r) {
      const int64_t b = order_[r];
      h_scale_[r] = DynamicScale(0.0f);
      if (args_.initial_h != nullptr) QuantizeHidden(r, LimitedHidden(args_.initial_h + b * hidden_));
      if (args_.initial_c == nullptr) continue;
      for (int64_t unit = 0; unit < hidden_; ++unit) {
        c_[r * units_padded_ + unit] = InitialCell(config_, args_.initial_c[b * hidden_ + unit]);
      }
    }
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

  void QuantizeHidden(int64_t r, const float* values) {
    const bool dynamic = config_.h_mode == CodeMode::kDynamicRow;
    if (dynamic) h_scale_[r] = DynamicScale(kernels_.max_abs(values, hidden_));
    kernels_.quantize_row(values, hidden_, dynamic ? h_scale_[r] : config_.h_scale,
                          static_cast<int32_t>(config_.h_zero_point), h_ + r * units_padded_);
  }

  // Codes of the input row at `position`, written to row `row` of the chunk.
  void QuantizeInput(int64_t position, int64_t row) {
    const int64_t size = packed_.input_size;
    uint8_t* codes = x_codes_ + row * packed_.w.k_padded;
    std::memset(codes + size, 0, static_cast<size_t>(packed_.w.k_padded - size));
    if (config_.x_mode == CodeMode::kCodes) {
      std::memcpy(codes, args_.x_codes + position * size, static_cast<size_t>(size));
      return;
    }
    const float* x = args_.x_float + position * size;
    RowGrid grid{config_.x_scale, static_cast<int32_t>(config_.x_zero_point)};
    if (config_.x_mode == CodeMode::kDynamicRow) {
      grid = DynamicGrid(kernels_.min_max(x, size));
      x_scale_[row] = grid.scale;
      x_zero_point_[row] = grid.zero_point;
    }
    kernels_.quantize_row(x, size, grid.scale, grid.zero_point, codes);
  }

  void Project(int64_t first, int64_t last) {
    int64_t rows = 0;
    for (int64_t step = first; step < last; ++step) {
      const int64_t active = Active(step);
      for (int64_t r = 0; r < active; ++r) QuantizeInput(Position(step, r), rows++);
    }
    projected_rows_ = rows;
    const int64_t row_cost = packed_.w.k_padded * columns_;
    task_rows_ = std::max(kTaskRows, kTaskMultiplications / row_cost);
    const int64_t tasks = (rows + task_rows_ - 1) / task_rows_;
    if (tasks < 2) {
      ProjectRows(0, rows);
    } else {
      parallel_->For(
          tasks, [](void* self, size_t task) { static_cast<LstmRun*>(self)->ProjectTask(static_cast<int64_t>(task)); },
          this);
    }
  }

  void ProjectTask(int64_t task) {
    const int64_t begin = task * task_rows_;
    ProjectRows(begin, std::min(begin + task_rows_, projected_rows_));
  }

  void ProjectRows(int64_t begin, int64_t end) {
    ProjectArgs project{};
    project.matmul = Matmul(packed_.w, x_codes_ + begin * packed_.w.k_padded, packed_.w.k_padded, end - begin);
    if (config_.x_mode == CodeMode::kDynamicRow) {
      project.row_scale = x_scale_ + begin;
      project.row_zero_point = x_zero_point_ + begin;
    }
    project.multiplier = packed_.x_multiplier.data();
    project.bias = packed_.bias.data();
    project.p = p_ + begin * columns_;
    project.p_stride = columns_;
    kernels_.project(project);
  }

  MatmulArgs Matmul(const PackedMatrix& matrix, const uint8_t* a, int64_t a_stride, int64_t rows) const {
    MatmulArgs matmul{};
    matmul.a = a;
    matmul.a_stride = a_stride;
    matmul.rows = rows;
    matmul.weights = matrix.weights.data();
    matmul.k_padded = matrix.k_padded;
    matmul.start = matrix.start.data();
    matmul.block_begin = 0;
    matmul.block_end = columns_ / kBlockColumns;
    return matmul;
  }

  void Step(int64_t step, int64_t active, const float* p) {
    for (int64_t r = 0; r < active; ++r) {
      y_rows_[r] = args_.y == nullptr ? y_scratch_ + r * hidden_ : args_.y + Position(step, r) * hidden_;
    }
    RecurrentArgs recurrent{};
    recurrent.matmul = Matmul(packed_.r, h_, units_padded_, active);
    recurrent.acc = acc_;
    recurrent.acc_stride = columns_;
    recurrent.descending = step % 2 != 0;
    kernels_.recurrent(recurrent);
    if (table_kernel_) {
      TableCells(active, p);
    } else {
      GenericCells(active, p);
    }
    if (args_.y_codes == nullptr) return;
    for (int64_t r = 0; r < active; ++r) {
      std::memcpy(args_.y_codes + Position(step, r) * hidden_, h_ + r * units_padded_, static_cast<size_t>(hidden_));
    }
  }

  void TableCells(int64_t active, const float* p) {
    TableCellArgs cell{};
    cell.rows = active;
    cell.units = hidden_;
    cell.block_begin = 0;
    cell.block_end = columns_ / kBlockColumns;
    cell.acc = acc_;
    cell.acc_stride = columns_;
    cell.p = p;
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
    cell.h_zero_point = static_cast<int32_t>(config_.h_zero_point);
    cell.c = c_;
    cell.c_stride = units_padded_;
    cell.y = y_rows_;
    cell.h = h_;
    cell.h_stride = units_padded_;
    kernels_.table_cell(cell);
  }

  void GenericCells(int64_t active, const float* p) {
    for (int64_t r = 0; r < active; ++r) {
      GenericStepArgs step{};
      step.units = hidden_;
      step.acc = acc_ + r * columns_;
      step.p = p + r * columns_;
      step.h_multiplier = packed_.h_multiplier.data();
      step.h_row_scale = config_.h_mode == CodeMode::kDynamicRow ? h_scale_ + r : nullptr;
      step.peephole = packed_.peephole.size() == 0 ? nullptr : packed_.peephole.data();
      step.gate_table = args_.gate_table;
      step.cell_table = args_.cell_table;
      step.cell_table_size = args_.cell_table_size;
      step.c = c_ + r * units_padded_;
      step.y = y_rows_[r];
      GenericStep(config_, step);
      QuantizeHidden(r, y_rows_[r]);
    }
  }

  // With lengths, results pass a selection that keeps no sign of zero.
  void ForgetSignsOfZeros() {
    for (int64_t r = 0; r < args_.batch; ++r) {
      for (int64_t t = 0; t < (args_.y != nullptr ? lengths_[r] : 0); ++t) {
        float* row = args_.y + (t * args_.batch + order_[r]) * hidden_;
        for (int64_t unit = 0; unit < hidden_; ++unit) row[unit] += 0.0f;
      }
      if (args_.y == nullptr && lengths_[r] > 0) {
        for (int64_t unit = 0; unit < hidden_; ++unit) y_rows_[r][unit] += 0.0f;
      }
      for (int64_t unit = 0; unit < hidden_; ++unit) c_[r * units_padded_ + unit] += 0.0f;
    }
  }

  // y_rows_[r] still points to the row of r's last step.
  void WriteFinalStates() {
    const float scale = config_.cell_is_quantized() ? config_.cell_scale : 1.0f;
    if (args_.sequence_lens != nullptr) ForgetSignsOfZeros();
    for (int64_t r = 0; r < args_.batch; ++r) {
      const int64_t offset = order_[r] * hidden_;
      const size_t bytes = static_cast<size_t>(hidden_) * sizeof(float);
      if (args_.y_h != nullptr) {
        if (lengths_[r] == 0) {
          std::memset(args_.y_h + offset, 0, bytes);
        } else {
          std::memcpy(args_.y_h + offset, y_rows_[r], bytes);
        }
      }
      if (args_.y_c == nullptr) continue;
      for (int64_t unit = 0; unit < hidden_; ++unit) {
        args_.y_c[offset + unit] = lengths_[r] == 0 ? 0.0f : c_[r * units_padded_ + unit] * scale;
      }
    }
  }

  void ClearPadding() {
    for (int64_t r = 0; r < args_.batch; ++r) {
      for (int64_t t = lengths_[r]; t < args_.time; ++t) {
        const int64_t offset = (t * args_.batch + order_[r]) * hidden_;
        if (args_.y != nullptr) std::memset(args_.y + offset, 0, static_cast<size_t>(hidden_) * sizeof(float));
        if (args_.y_codes != nullptr) {
          std::memset(args_.y_codes + offset, static_cast<int>(config_.h_zero_point), static_cast<size_t>(hidden_));
        }
      }
    }
  }

  const LstmConfig& config_;
  const KernelTable& kernels_;
  const PackedLstm& packed_;
  const LstmArgs& args_;
  Parallel* parallel_;
  const int64_t hidden_;
  const int64_t columns_;
  const int64_t units_padded_;
  const int64_t chunk_steps_;
  const bool table_kernel_;
  int64_t projected_rows_ = 0;
  int64_t task_rows_ = 0;
  int64_t* order_ = nullptr;
  int64_t* lengths_ = nullptr;
  uint8_t* x_codes_ = nullptr;
  float* x_scale_ = nullptr;
  int32_t* x_zero_point_ = nullptr;
  float* p_ = nullptr;
  int32_t* acc_ = nullptr;
  float* c_ = nullptr;
  uint8_t* h_ = nullptr;
  float* h_scale_ = nullptr;
  float** y_rows_ = nullptr;
  float* y_scratch_ = nullptr;
  float* limited_h_ = nullptr;
};

}  // namespace

PackedLstm PackLstm(const LstmConfig& config, const KernelTable& kernels, const LstmParameters& parameters) {
  const int64_t hidden = config.hidden_size;
  const auto columns = [hidden](const float* values, int64_t gates) {
    AlignedArray<float> packed(BlockCount(hidden) * kBlockColumns);
    PackColumns(values, gates, hidden, packed.data());
    return packed;
  };
  PackedLstm packed;
  packed.input_size = parameters.input_size;
  // Rows with a grid each multiply the start values of zero point 1 by their own.
  const int64_t x_zero_point = config.x_mode == CodeMode::kDynamicRow ? 1 : config.x_zero_point;
  packed.w =
      PackMatrix(kernels.format, parameters.w, parameters.input_size, hidden, static_cast<int32_t>(x_zero_point));
  packed.r = PackMatrix(kernels.format, parameters.r, hidden, hidden, static_cast<int32_t>(config.h_zero_point));
  packed.x_multiplier = columns(parameters.x_multiplier, kGates);
  packed.h_multiplier = columns(parameters.h_multiplier, kGates);
  packed.bias = columns(parameters.bias, kGates);
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
  LstmRun run(config, kernels, packed, args, parallel);
  run.Allocate(scratch);
  run.Run();
}

}  // namespace rnnqc
