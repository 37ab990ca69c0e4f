#include "cells/grid_cell.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "cells/sequence_rows.h"

namespace rnnqc {
namespace {

// The input's share is computed for as many steps at once as fit here.
constexpr int64_t kProjectionBytes = 512 * 1024;
// Rows whose products are taken at a time.
constexpr int64_t kProductRows = 16;
// Least rows of a group of its own, products of a call that has groups, and most bytes of recurrent weights, which
// every group reads at each step: they have to stay in its cache.
constexpr int64_t kRowsOfAGroup = 4;
constexpr int64_t kSharedProducts = 1 << 20;
constexpr int64_t kPrivateWeights = 768 * 1024;

template <typename Real>
class GridRun {
 public:
  GridRun(const LstmConfig& config, const KernelTable& kernels, const PackedGrid<Real>& packed, const LstmArgs& args,
          int64_t first, int64_t stride)
      : config_(config),
        kernels_(kernels),
        elementwise_(SelectGridKernels<Real>(kernels.isa)),
        packed_(packed),
        args_(args),
        sequences_(config.direction, args.time, args.batch, args.sequence_lens, first, stride),
        rows_(sequences_.count()),
        input_(packed.w.planes[0].k),
        hidden_(config.hidden_size),
        blocks_(BlockCount(hidden_)),
        columns_(blocks_ * kBlockColumns),
        units_(blocks_ * kBlockUnits),
        x_stride_(packed.w.planes[0].k_padded),
        x_planes_(config.x_bits == 16 ? 2 : 1),
        h_planes_(config.h_bits == 16 ? 2 : 1),
        chunk_steps_(std::max<int64_t>(
            1, std::min(args.time, kProjectionBytes / (rows_ * columns_ * static_cast<int64_t>(sizeof(Real)))))) {
    for (int64_t gate = 0; gate < kGates; ++gate) {
      input_product_[gate] = Quantizer<Real>(config.grid.points[GridOrder::kInputProduct + gate]);
      hidden_product_[gate] = Quantizer<Real>(config.grid.points[GridOrder::kHiddenProduct + gate]);
    }
  }

  int64_t ScratchBytes() {
    ScratchCounter counter;
    ForEachPiece([&counter](auto*& pointer, int64_t count) { counter.Count(pointer, count); });
    return counter.bytes();
  }

  // `memory` has ScratchBytes() bytes.
  void Run(uint8_t* memory) {
    ScratchTaker taker(memory);
    ForEachPiece([&taker](auto*& pointer, int64_t count) { taker.Take(&pointer, count); });
    sequences_.Sort();
    InitializeStep();
    InitializeStates();
    const int64_t steps = sequences_.length(0);
    for (int64_t begin = 0; begin < steps; begin += chunk_steps_) {
      const int64_t end = std::min(begin + chunk_steps_, steps);
      Project(begin, end);
      int64_t row = 0;
      for (int64_t step = begin; step < end; ++step) {
        const int64_t active = sequences_.Active(step);
        Step(step, active, p_ + row * columns_);
        row += active;
      }
    }
    WriteFinalStates();
    sequences_.ClearPadding(hidden_, config_.h_zero_point, args_.y, args_.y_codes);
  }

 private:
  template <typename Visit>
  void ForEachPiece(const Visit& visit) {
    const int64_t chunk_rows = chunk_steps_ * rows_;
    sequences_.ForEachPiece(visit);
    visit(x_codes_, chunk_rows * x_planes_ * x_stride_);
    visit(p_, chunk_rows * columns_);
    visit(acc_, 2 * kProductRows * 2 * columns_);
    visit(c_, rows_ * units_);
    visit(h_, rows_ * h_planes_ * units_);
    visit(h_share_, rows_ * columns_);
    visit(y_, rows_ * units_);
    visit(values_, std::max(input_, units_));
    visit(scratch_, std::max(input_, units_));
  }

  void InitializeStep() {
    step_ = {};
    step_.units = units_;
    step_.peephole = packed_.peephole.size() == 0 ? nullptr : packed_.peephole.data();
    step_.bias = config_.arithmetic == Arithmetic::kGrid ? nullptr : packed_.bias.data();
    for (int64_t gate = 0; gate < kGates; ++gate) {
      if (!config_.gate_is_used(static_cast<int>(gate))) continue;
      const GridPoint& acc = config_.grid.points[GridOrder::kAcc + gate];
      step_.acc[gate] = Quantizer<Real>(acc);
      step_.gate_min[gate] = config_.gates[gate].min;
      step_.gate_max[gate] = config_.gates[gate].max;
      step_.gate_table[gate] = args_.gate_table + (config_.gates[gate].table_offset - acc.low());
      step_.limited = step_.limited || std::isfinite(step_.gate_min[gate]) || std::isfinite(step_.gate_max[gate]);
    }
    const GridPoint& cell = config_.grid.points[GridOrder::kCell];
    step_.cell_table = args_.cell_table - cell.low();
    step_.input_forget = config_.input_forget;
    step_.one = config_.one;
    step_.kept = Quantizer<Real>(config_.grid.points[GridOrder::kKept]);
    step_.added = Quantizer<Real>(config_.grid.points[GridOrder::kAdded]);
    step_.cell = Quantizer<Real>(cell);
    step_.hidden = Quantizer<Real>(config_.grid.points[GridOrder::kHidden]);
    step_.hidden_zero_point = static_cast<int32_t>(config_.h_zero_point);
    step_.rounded_output = config_.grid.rounded_output;
    step_.scratch = scratch_;
  }

  void InitializeStates() {
    const int32_t zero = static_cast<int32_t>(config_.h_zero_point);
    for (int64_t r = 0; r < rows_; ++r) {
      uint8_t* h = h_ + r * h_planes_ * units_;
      Real* c = c_ + r * units_;
      if (h_planes_ == 2) std::memset(h, zero >> 8, static_cast<size_t>(units_));
      std::memset(h + (h_planes_ - 1) * units_, zero & 255, static_cast<size_t>(units_));
      std::fill(c, c + units_, Real(0));
      const int64_t offset = sequences_.batch_index(r) * hidden_;
      if (args_.initial_h != nullptr) {
        Codes(args_.initial_h + offset, hidden_, GridOrder::kHidden, h_planes_, h, units_);
      }
      if (args_.initial_c != nullptr) InitialCells(args_.initial_c + offset, c);
    }
  }

  void InitialCells(const float* given, Real* c) {
    // Codes are not wanted, the multiples they are made from are.
    const GridPoint& point = config_.grid.points[GridOrder::kCell];
    GridCodesArgs<Real> codes{};
    codes.n = hidden_;
    codes.x = given;
    codes.quantizer = Quantizer<Real>(point);
    codes.multiples = values_;
    elementwise_.codes(codes);
    for (int64_t unit = 0; unit < hidden_; ++unit) c[unit] = values_[unit] * codes.quantizer.scale;
  }

  // Codes of a row of values: one row of bytes, or two that are `stride` apart.
  void Codes(const float* values, int64_t n, int64_t point, int64_t planes, uint8_t* codes, int64_t stride) {
    GridCodesArgs<Real> args{};
    args.n = n;
    args.x = values;
    args.quantizer = Quantizer<Real>(config_.grid.points[point]);
    args.zero_point = static_cast<int32_t>(config_.grid.points[point].zero_point);
    args.multiples = values_;
    args.high = planes == 2 ? codes : nullptr;
    args.low = codes + (planes - 1) * stride;
    elementwise_.codes(args);
  }

  // The input's share of the pre-activations of some steps, in the order in which rows run.
  void Project(int64_t begin, int64_t end) {
    int64_t rows = 0;
    for (int64_t step = begin; step < end; ++step) {
      const int64_t active = sequences_.Active(step);
      for (int64_t r = 0; r < active; ++r, ++rows) {
        const int64_t position = sequences_.Position(step, r) * input_;
        uint8_t* codes = x_codes_ + rows * x_planes_ * x_stride_;
        std::memset(codes, 0, static_cast<size_t>(x_planes_ * x_stride_));
        if (config_.x_mode == CodeMode::kCodes) {
          std::memcpy(codes, args_.x_codes + position, static_cast<size_t>(input_));
        } else {
          Codes(args_.x_float + position, input_, GridOrder::kInput, x_planes_, codes, x_stride_);
        }
      }
    }
    Multiply(packed_.w, x_codes_, x_stride_, input_, x_planes_, rows, packed_.x_multiplier.data(),
             config_.arithmetic == Arithmetic::kGrid ? packed_.bias.data() : nullptr, input_product_, p_);
  }

  // out [rows, columns] = Q_gate(sums * multiplier + bias). `k` of each row's codes are not padding.
  void Multiply(const GridProduct& product, const uint8_t* codes, int64_t stride, int64_t k, int64_t code_planes,
                int64_t rows, const Real* multiplier, const Real* bias, const GridQuantizer<Real>* quantizers,
                Real* out) {
    const int64_t weight_planes = static_cast<int64_t>(product.planes.size());
    for (int64_t first = 0; first < rows; first += kProductRows) {
      const int64_t count = std::min(kProductRows, rows - first);
      const uint8_t* some = codes + first * code_planes * stride;
      for (int64_t plane = 0; plane < weight_planes; ++plane) {
        const PackedMatrix& matrix = product.planes[static_cast<size_t>(plane)];
        RecurrentArgs sums{};
        sums.matmul.a = some;
        sums.matmul.a_stride = stride;
        sums.matmul.rows = count * code_planes;
        sums.matmul.weights = matrix.weights.data();
        sums.matmul.k_padded = matrix.k_padded;
        sums.matmul.start = product.no_start.empty() ? matrix.start.data() : product.no_start.data();
        sums.matmul.block_end = blocks_;
        sums.acc = acc_ + plane * 2 * kProductRows * columns_;
        sums.acc_stride = columns_;
        kernels_.recurrent(sums);
      }
      for (int64_t r = 0; r < count; ++r) {
        GridJoinArgs<Real> join{};
        join.blocks = blocks_;
        join.planes = weight_planes * code_planes;
        for (int64_t plane = 0; plane < join.planes; ++plane) {
          const int64_t of_weights = plane / code_planes;
          const int64_t of_codes = plane % code_planes;
          join.acc[plane] = acc_ + (of_weights * 2 * kProductRows + r * code_planes + of_codes) * columns_;
          join.factor[plane] =
              (of_weights + 1 < weight_planes ? 256.0 : 1.0) * (of_codes + 1 < code_planes ? 256.0 : 1.0);
        }
        if (product.start.size() != 0) join.start = product.start.data();
        if (product.zero_point.size() != 0) {
          join.zero_point = product.zero_point.data();
          join.row_sum = RowSum(some + r * code_planes * stride, stride, k, code_planes, product.code_zero_point);
        }
        SetSaturation(&join);
        join.multiplier = multiplier;
        join.bias = bias;
        join.quantizer = quantizers;
        join.out = out + (first + r) * columns_;
        elementwise_.join(join);
      }
    }
  }

  void SetSaturation(GridJoinArgs<Real>* join) const {
    const int64_t bits = config_.grid.accumulator_bits;
    if (bits == 0) return;
    join->saturates = true;
    join->saturation_low = -std::ldexp(1.0, static_cast<int>(bits - 1));
    join->saturation_high = -join->saturation_low - 1;
  }

  // Sum of the codes of a row minus their zero point.
  static double RowSum(const uint8_t* codes, int64_t stride, int64_t k, int64_t planes, int64_t zero_point) {
    int64_t sum = -k * zero_point;
    for (int64_t plane = 0; plane < planes; ++plane) {
      int64_t part = 0;
      for (int64_t i = 0; i < k; ++i) part += codes[plane * stride + i];
      sum += plane + 1 < planes ? 256 * part : part;
    }
    return static_cast<double>(sum);
  }

  void Step(int64_t step, int64_t active, const Real* p) {
    Multiply(packed_.r, h_, units_, hidden_, h_planes_, active, packed_.h_multiplier.data(), nullptr, hidden_product_,
             h_share_);
    for (int64_t r = 0; r < active; ++r) {
      uint8_t* codes = h_ + r * h_planes_ * units_;
      step_.p = p + r * columns_;
      step_.g = h_share_ + r * columns_;
      step_.c = c_ + r * units_;
      step_.y = y_ + r * units_;
      step_.high = h_planes_ == 2 ? codes : nullptr;
      step_.low = codes + (h_planes_ - 1) * units_;
      elementwise_.step(step_);
      const int64_t offset = sequences_.Position(step, r) * hidden_;
      if (args_.y != nullptr) {
        std::memcpy(args_.y + offset, step_.y, static_cast<size_t>(hidden_) * sizeof(float));
      }
      if (args_.y_codes != nullptr) std::memcpy(args_.y_codes + offset, codes, static_cast<size_t>(hidden_));
    }
  }

  // With lengths, results pass a selection that keeps no sign of zero.
  void WriteFinalStates() {
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t offset = sequences_.batch_index(r) * hidden_;
      const bool any = sequences_.length(r) > 0;
      const bool positive = args_.sequence_lens != nullptr;
      for (int64_t t = 0; positive && args_.y != nullptr && t < sequences_.length(r); ++t) {
        float* row = args_.y + (t * args_.batch + sequences_.batch_index(r)) * hidden_;
        for (int64_t unit = 0; unit < hidden_; ++unit) row[unit] += 0.0f;
      }
      for (int64_t unit = 0; unit < hidden_; ++unit) {
        const float y = y_[r * units_ + unit];
        if (args_.y_h != nullptr) args_.y_h[offset + unit] = !any ? 0.0f : positive ? y + 0.0f : y;
        if (args_.y_c != nullptr) {
          args_.y_c[offset + unit] = any ? static_cast<float>(c_[r * units_ + unit]) + 0.0f : 0.0f;
        }
      }
    }
  }

  const LstmConfig& config_;
  const KernelTable& kernels_;
  const GridKernels<Real>& elementwise_;
  const PackedGrid<Real>& packed_;
  const LstmArgs& args_;
  SequenceRows sequences_;
  const int64_t rows_;
  const int64_t input_;
  const int64_t hidden_;
  const int64_t blocks_;
  const int64_t columns_;
  const int64_t units_;  // padded
  const int64_t x_stride_;
  const int64_t x_planes_;
  const int64_t h_planes_;
  const int64_t chunk_steps_;
  GridQuantizer<Real> input_product_[kGates];
  GridQuantizer<Real> hidden_product_[kGates];
  GridStepArgs<Real> step_;

  uint8_t* x_codes_ = nullptr;
  Real* p_ = nullptr;
  int32_t* acc_ = nullptr;
  Real* c_ = nullptr;
  uint8_t* h_ = nullptr;
  Real* h_share_ = nullptr;
  float* y_ = nullptr;
  Real* values_ = nullptr;
  Real* scratch_ = nullptr;
};

// Groups of rows that may run at the same time; results do not depend on it. A group has about as many rows as the
// kernels multiply at once, so that groups which run one after the other lose little.
template <typename Real>
int64_t GroupsOfRows(const PackedGrid<Real>& packed, const LstmArgs& args) {
  static const int64_t processors = std::max<int64_t>(1, std::thread::hardware_concurrency());
  const int64_t products = (packed.w.planes[0].k + packed.r.planes[0].k) * packed.x_multiplier.size();
  int64_t recurrent = 0;
  for (const PackedMatrix& plane : packed.r.planes) recurrent += plane.bytes();
  if (recurrent > kPrivateWeights || args.time * args.batch * products < kSharedProducts) return 1;
  return std::max<int64_t>(1, std::min(processors, args.batch / kRowsOfAGroup));
}

}  // namespace

template <typename Real>
PackedGrid<Real> PackGrid(const LstmConfig& config, const KernelTable& kernels, const GridParameters& parameters) {
  const int64_t hidden = config.hidden_size;
  PackedGrid<Real> packed;
  packed.w = PackGridProduct(kernels, "W_zero_point", parameters.w, hidden, config.x_zero_point, config.x_bits == 16);
  packed.r = PackGridProduct(kernels, "R_zero_point", parameters.r, hidden, config.h_zero_point, config.h_bits == 16);
  packed.x_multiplier = PlanarArray<Real>(parameters.x_multiplier, kGates, hidden);
  packed.h_multiplier = PlanarArray<Real>(parameters.h_multiplier, kGates, hidden);
  packed.bias = PlanarArray<Real>(parameters.bias, kGates, hidden);
  if (parameters.peephole != nullptr) packed.peephole = PlanarArray<Real>(parameters.peephole, 3, hidden);
  return packed;
}

template <typename Real>
void RunGrid(const LstmConfig& config, const KernelTable& kernels, const PackedGrid<Real>& packed, const LstmArgs& args,
             Scratch* scratch, Parallel* parallel) {
  struct Groups {
    const LstmConfig& config;
    const KernelTable& kernels;
    const PackedGrid<Real>& packed;
    const LstmArgs& args;
    Scratch* scratch;
    int64_t count;

    GridRun<Real> Group(int64_t index) const { return GridRun<Real>(config, kernels, packed, args, index, count); }
  };
  Groups groups{config, kernels, packed, args, scratch, GroupsOfRows(packed, args)};
  // A largest and a smallest one: fewer rows take more steps at a time, and may need more memory.
  const int64_t bytes = std::max(groups.Group(0).ScratchBytes(), groups.Group(groups.count - 1).ScratchBytes());
  scratch->Reset(groups.count, bytes);
  if (groups.count == 1) return groups.Group(0).Run(scratch->Share(0));
  parallel->For(
      groups.count,
      [](void* user, size_t index) {
        const Groups& all = *static_cast<const Groups*>(user);
        const int64_t group = static_cast<int64_t>(index);
        all.Group(group).Run(all.scratch->Share(group));
      },
      &groups);
}

template PackedGrid<double> PackGrid<double>(const LstmConfig&, const KernelTable&, const GridParameters&);
template void RunGrid<double>(const LstmConfig&, const KernelTable&, const PackedGrid<double>&, const LstmArgs&,
                              Scratch*, Parallel*);
template PackedGrid<float> PackGrid<float>(const LstmConfig&, const KernelTable&, const GridParameters&);
template void RunGrid<float>(const LstmConfig&, const KernelTable&, const PackedGrid<float>&, const LstmArgs&, Scratch*,
                             Parallel*);

}  // namespace rnnqc
