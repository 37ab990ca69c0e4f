#include "cells/fixed_point/fixed_point_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

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

// Sum of the codes of a row minus their zero point.
double RowSum(const uint8_t* codes, int64_t stride, int64_t k, int64_t planes, int64_t zero_point) {
  int64_t sum = -k * zero_point;
  for (int64_t plane = 0; plane < planes; ++plane) {
    int64_t part = 0;
    for (int64_t i = 0; i < k; ++i) part += codes[plane * stride + i];
    sum += plane + 1 < planes ? 256 * part : part;
  }
  return static_cast<double>(sum);
}

}  // namespace

template <typename Real>
void PackGridInputSide(const CellConfig& config, const KernelTable& kernels, const CellParameters& parameters,
                       PackedGrid<Real>* packed) {
  CheckZeroPoints("W_zero_point", parameters.w);
  CheckZeroPoints("R_zero_point", parameters.r);
  packed->w = PackGridProduct(kernels, parameters.w, config.x_zero_point, config.x_bits == 16);
  packed->x_multiplier = PlanarArray<Real>(parameters.x_multiplier, config.gate_count, config.hidden_size);
  packed->bias = PlanarArray<Real>(parameters.bias, config.gate_count, config.hidden_size);
}

template <typename Real>
void PackGridHiddenSide(const CellConfig& config, const KernelTable& kernels, const CellParameters& parameters,
                        PackedGrid<Real>* packed) {
  packed->r = PackGridProduct(kernels, parameters.r, config.h_zero_point, config.h_bits == 16);
  packed->h_multiplier = PlanarArray<Real>(parameters.h_multiplier, config.gate_count, config.hidden_size);
}

// A group has about as many rows as the kernels multiply at once, so that groups which run one after the other lose
// little.
int64_t GroupsOfGridRows(const GridProduct& w, std::initializer_list<const GridProduct*> hidden, const CellArgs& args) {
  static const int64_t processors = std::max<int64_t>(1, std::thread::hardware_concurrency());
  const auto products_of = [](const GridProduct& product) {
    return product.planes[0].k * product.planes[0].start.size();
  };
  int64_t products = products_of(w);
  int64_t hidden_bytes = 0;
  for (const GridProduct* product : hidden) {
    products += products_of(*product);
    for (const PackedMatrix& plane : product->planes) hidden_bytes += plane.bytes();
  }
  if (hidden_bytes > kPrivateWeights || args.time * args.batch * products < kSharedProducts) return 1;
  return std::max<int64_t>(1, std::min(processors, args.batch / kRowsOfAGroup));
}

template <typename Real>
GridRun<Real>::GridRun(const CellConfig& config, const KernelTable& kernels, const PackedGrid<Real>& packed,
                       const CellArgs& args, int64_t first, int64_t stride)
    : SequenceDriver(config, kernels, args, first, stride),
      elementwise_(SelectGridKernels<Real>(kernels.isa)),
      packed_(packed),
      blocks_(BlockCount(hidden_)),
      units_(blocks_ * kBlockUnits),
      columns_(config.gate_count * units_),
      input_(packed.input_size()),
      x_stride_(packed.w.planes[0].k_padded),
      x_planes_(config.x_bits == 16 ? 2 : 1),
      h_planes_(config.h_bits == 16 ? 2 : 1),
      acc_columns_(ColumnCount(hidden_, config.gate_count)) {
  const int64_t step_bytes = rows_ * columns_ * static_cast<int64_t>(sizeof(Real));
  chunk_steps_ = std::max<int64_t>(1, std::min(args.time, kProjectionBytes / step_bytes));
  for (int64_t gate = 0; gate < config.gate_count; ++gate) {
    input_product_[gate] = Quantizer<Real>(config.grid.input_product(gate));
    hidden_product_[gate] = Quantizer<Real>(config.grid.hidden_product(gate));
  }
}

template <typename Real>
void GridRun<Real>::VisitDriverScratch(ScratchPieces& pieces) {
  const int64_t chunk_rows = chunk_steps_ * rows_;
  pieces(x_codes_, chunk_rows * x_planes_ * x_stride_);
  pieces(x_scaled_, args_.x_factor == nullptr ? 0 : input_);
  pieces(p_, chunk_rows * columns_);
  pieces(acc_, 2 * kProductRows * 2 * acc_columns_);
  pieces(h_, rows_ * h_planes_ * units_);
  pieces(h_share_, rows_ * columns_);
  pieces(y_, rows_ * units_);
  pieces(values_, std::max(input_, units_));
  pieces(scratch_, units_);
}

template <typename Real>
void GridRun<Real>::InitializeCodes() {
  const int32_t zero = static_cast<int32_t>(config_.h_zero_point);
  const Codes h = HiddenCodes();
  std::fill(y_, RowOfY(rows_), 0.0f);
  for (int64_t r = 0; r < rows_; ++r) {
    if (h_planes_ == 2) std::memset(h.high(r), zero >> 8, static_cast<size_t>(units_));
    std::memset(h.low(r), zero & 255, static_cast<size_t>(units_));
    if (args_.initial_h == nullptr) continue;
    Encode(args_.initial_h + sequences_.batch_index(r) * hidden_, hidden_, config_.grid.hidden(), h.high(r), h.low(r));
  }
}

template <typename Real>
void GridRun<Real>::Encode(const float* values, int64_t n, const GridPoint& point, uint8_t* high, uint8_t* low) {
  GridCodesArgs<Real> codes{};
  codes.n = n;
  codes.x = values;
  codes.quantizer = Quantizer<Real>(point);
  codes.zero_point = static_cast<int32_t>(point.zero_point);
  codes.multiples = values_;
  codes.high = high;
  codes.low = low;
  elementwise_.codes(codes);
}

template <typename Real>
void GridRun<Real>::Round(const float* values, int64_t n, const GridPoint& point, Real* real) {
  Encode(values, n, point, nullptr, nullptr);
  for (int64_t i = 0; i < n; ++i) real[i] = values_[i] * static_cast<Real>(point.scale);
}

// The input's share of the pre-activations of the chunk, in the order in which rows run.
template <typename Real>
void GridRun<Real>::StartChunk() {
  const Codes x{x_codes_, input_, x_stride_, x_planes_};
  int64_t rows = 0;
  for (int64_t step = chunk_begin_; step < chunk_end_; ++step) {
    const int64_t active = sequences_.Active(step);
    for (int64_t r = 0; r < active; ++r, ++rows) {
      const int64_t position = sequences_.Position(step, r);
      std::memset(x.row(rows), 0, static_cast<size_t>(x_planes_ * x_stride_));
      if (config_.x_mode == CodeMode::kCodes) {
        std::memcpy(x.row(rows), args_.x_codes + position * input_, static_cast<size_t>(input_));
      } else {
        const InputRow row = ReadInput(args_, position, x_scaled_);
        int64_t begin = 0;
        for (size_t i = 0; i < row.count; ++i) {
          uint8_t* high = x.high(rows);
          Encode(row.parts[i].data, row.parts[i].size, config_.grid.input(), high == nullptr ? high : high + begin,
                 x.low(rows) + begin);
          begin += row.parts[i].size;
        }
      }
    }
  }
  const Real* bias = config_.arithmetic == Arithmetic::kGrid ? packed_.bias.data() : nullptr;
  Multiply(packed_.w, x, rows, {packed_.x_multiplier.data(), bias, input_product_, p_, columns_});
}

template <typename Real>
void GridRun<Real>::Multiply(const GridProduct& product, const Codes& codes, int64_t rows, const Target& target) {
  const int64_t weight_planes = static_cast<int64_t>(product.planes.size());
  const int64_t columns = ColumnCount(hidden_, product.gates);
  for (int64_t first = 0; first < rows; first += kProductRows) {
    const int64_t count = std::min(kProductRows, rows - first);
    for (int64_t plane = 0; plane < weight_planes; ++plane) {
      const PackedMatrix& matrix = product.planes[static_cast<size_t>(plane)];
      RecurrentArgs sums{};
      sums.matmul.a = codes.row(first);
      sums.matmul.a_stride = codes.stride;
      sums.matmul.rows = count * codes.planes;
      sums.matmul.weights = matrix.weights.data();
      sums.matmul.k_padded = matrix.k_padded;
      sums.matmul.start = product.no_start.empty() ? matrix.start.data() : product.no_start.data();
      sums.matmul.block_end = columns / kBlockColumns;
      sums.matmul.columns = matrix.columns;
      sums.acc = acc_ + plane * 2 * kProductRows * columns;
      sums.acc_stride = columns;
      kernels_.recurrent(sums);
    }
    for (int64_t r = 0; r < count; ++r) {
      GridJoinArgs<Real> join{};
      join.blocks = blocks_;
      join.gates = product.gates;
      join.planes = weight_planes * codes.planes;
      for (int64_t plane = 0; plane < join.planes; ++plane) {
        const int64_t of_weights = plane / codes.planes;
        const int64_t of_codes = plane % codes.planes;
        join.acc[plane] = acc_ + (of_weights * 2 * kProductRows + r * codes.planes + of_codes) * columns;
        join.factor[plane] =
            (of_weights + 1 < weight_planes ? 256.0 : 1.0) * (of_codes + 1 < codes.planes ? 256.0 : 1.0);
      }
      if (product.start.size() != 0) join.start = product.start.data();
      if (product.zero_point.size() != 0) {
        join.zero_point = product.zero_point.data();
        join.row_sum = RowSum(codes.row(first + r), codes.stride, codes.k, codes.planes, product.code_zero_point);
      }
      SetSaturation(&join);
      join.multiplier = target.multiplier;
      join.bias = target.bias;
      join.quantizer = target.quantizers;
      join.out = target.values + (first + r) * target.stride;
      elementwise_.join(join);
    }
  }
}

template <typename Real>
void GridRun<Real>::SetSaturation(GridJoinArgs<Real>* join) const {
  const int64_t bits = config_.grid.accumulator_bits;
  if (bits == 0) return;
  join->saturates = true;
  join->saturation_low = -std::ldexp(1.0, static_cast<int>(bits - 1));
  join->saturation_high = -join->saturation_low - 1;
}

template <typename Real>
void GridRun<Real>::PrepareStep(GridStepArgs<Real>* step, int64_t unused_gate) const {
  step->units = units_;
  step->bias = config_.arithmetic == Arithmetic::kGrid ? nullptr : packed_.bias.data();
  for (int64_t gate = 0; gate < config_.gate_count; ++gate) {
    if (gate == unused_gate) continue;
    const GridPoint& acc = config_.grid.acc(gate);
    step->acc[gate] = Quantizer<Real>(acc);
    step->gate_min[gate] = config_.gates[gate].min;
    step->gate_max[gate] = config_.gates[gate].max;
    step->gate_table[gate] = args_.gate_table + (config_.gates[gate].table_offset - acc.low());
    step->limited = step->limited || std::isfinite(step->gate_min[gate]) || std::isfinite(step->gate_max[gate]);
  }
  step->hidden = Quantizer<Real>(config_.grid.hidden());
  step->hidden_zero_point = static_cast<int32_t>(config_.h_zero_point);
  step->scratch = scratch_;
}

template <typename Real>
void GridRun<Real>::SetRow(int64_t r, GridStepArgs<Real>* step) const {
  const Codes h = HiddenCodes();
  step->p = p_step_ + r * columns_;
  step->g = h_share_ + r * columns_;
  step->y = RowOfY(r);
  step->high = h.high(r);
  step->low = h.low(r);
}

template <typename Real>
void GridRun<Real>::WriteRow(int64_t r) const {
  const int64_t offset = sequences_.Position(step_, r) * hidden_;
  if (args_.y != nullptr) {
    std::memcpy(args_.y + offset, RowOfY(r), static_cast<size_t>(hidden_) * sizeof(float));
  }
  if (args_.y_codes != nullptr) std::memcpy(args_.y_codes + offset, h_ + r * units_, static_cast<size_t>(hidden_));
}

#define RNNQC_GRID(Real)                                                                               \
  template class GridRun<Real>;                                                                        \
  template void PackGridInputSide<Real>(const CellConfig&, const KernelTable&, const CellParameters&,  \
                                        PackedGrid<Real>*);                                            \
  template void PackGridHiddenSide<Real>(const CellConfig&, const KernelTable&, const CellParameters&, \
                                         PackedGrid<Real>*);
RNNQC_GRID(double)
RNNQC_GRID(float)
#undef RNNQC_GRID

}  // namespace rnnqc
