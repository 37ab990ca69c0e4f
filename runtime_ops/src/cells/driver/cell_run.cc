#include "cells/driver/cell_run.h"

#include <algorithm>

#include "threads/cost.h"
#include "threads/team.h"

namespace rnnqc {
namespace {

// A step that ends in a barrier pays more than it gains if it is shorter than this (nanoseconds), and so does a part of
// it.
constexpr double kSharedStep = 800;
constexpr double kPartOfAStep = 250;
// Threads take rows of their own, without barriers, if each has as many as it multiplies at once and the weights fit
// into its cache.
constexpr double kPrivateWeights = 768 * 1024;

// `count` gates of rows of columns; none of null.
template <typename T>
std::vector<T> CopyColumns(const T* from, int64_t rows, const Matrix& all, int64_t first, int64_t count) {
  std::vector<T> some;
  if (from == nullptr) return some;
  some.reserve(static_cast<size_t>(rows * count * all.units));
  for (int64_t row = 0; row < rows; ++row) {
    const T* begin = from + row * all.columns() + first * all.units;
    some.insert(some.end(), begin, begin + count * all.units);
  }
  return some;
}

}  // namespace

GateColumns::GateColumns(const WeightMatrix& all, int64_t first, int64_t count)
    : matrix_(all),
      weights_(CopyColumns(all.weights, all.k, all, first, count)),
      wide_(CopyColumns(all.wide, all.k, all, first, count)) {
  matrix_.gates = count;
  if (all.weights != nullptr) matrix_.weights = weights_.data();
  if (all.wide != nullptr) matrix_.wide = wide_.data();
  if (all.zero_point != nullptr) matrix_.zero_point = all.zero_point + first * all.units;
  if (all.multipliers == nullptr) return;
  multipliers_ = CopyColumns(all.multipliers, GroupCount(all.k, all.group_size), all, first, count);
  matrix_.multipliers = multipliers_.data();
}

AlignedArray<float> PackedColumns(const float* values, int64_t gates, int64_t hidden, bool short_tail) {
  AlignedArray<float> packed(ColumnCount(hidden, gates));
  PackColumns(values, gates, hidden, packed.data(), gates, short_tail);
  return packed;
}

// For rows with zero points of their own, start values belong to zero point 1 and are multiplied by the row's.

PackedMatrix PackInputWeights(const CellConfig& config, const KernelTable& kernels, const Matrix& w) {
  const bool rows = config.has_x_scales() || config.x_bits == 16;
  const int64_t zero_point = rows ? 1 : config.x_zero_point;
  return PackMatrix(Formats(kernels), Width::kMixed, w, static_cast<int32_t>(zero_point));
}

PackedMatrix PackHiddenWeights(const CellConfig& config, const KernelTable& kernels, const Matrix& r,
                               int64_t zero_point) {
  return PackMatrix(Formats(kernels), Width::kMixed, r, config.h_bits == 16 ? 1 : static_cast<int32_t>(zero_point));
}

void PackInputSide(const CellConfig& config, const KernelTable& kernels, const CellParameters& parameters,
                   PackedCell* packed) {
  packed->w = PackInputWeights(config, kernels, parameters.w);
  packed->x_multiplier =
      PackedColumns(parameters.x_multiplier, config.gate_count, config.hidden_size, parameters.w.short_tail);
  packed->bias = PackedColumns(parameters.bias, config.gate_count, config.hidden_size, parameters.w.short_tail);
  packed->h_reciprocal = FindReciprocal(config.h_scale);
}

void PackHiddenSide(const CellConfig& config, const KernelTable& kernels, const CellParameters& parameters,
                    PackedCell* packed) {
  packed->r = PackHiddenWeights(config, kernels, parameters.r, config.h_zero_point);
  packed->h_multiplier =
      PackedColumns(parameters.h_multiplier, config.gate_count, config.hidden_size, parameters.r.short_tail);
}

InputRow ReadInput(const CellArgs& args, int64_t position, float* scaled) {
  InputRow row{};
  row.count = args.x_part_count;
  int64_t column = 0;
  for (size_t i = 0; i < row.count; ++i) {
    const int64_t size = args.x_parts[i].size;
    const float* values = args.x_parts[i].data + position * size;
    row.parts[i] = {values, size};
    if (args.x_factor == nullptr) continue;
    for (int64_t k = 0; k < size; ++k) scaled[column + k] = values[k] * args.x_factor[column + k];
    column += size;
  }
  if (args.x_factor != nullptr) {
    row.parts[0] = {scaled, column};
    row.count = 1;
  }
  return row;
}

Division Divide(const CellConfig& config, const KernelTable& kernels, const PackedCell& packed, int64_t hidden_bytes,
                int64_t hidden_columns, const CellArgs& args, int64_t members) {
  const int64_t processors = Processors();
  const double r_bytes = static_cast<double>(hidden_bytes);
  const auto planes = [](int64_t bits) { return bits == 16 ? 2 : 1; };
  const double w_bytes = static_cast<double>(packed.w.bytes());
  // Estimated nanoseconds of one step.
  const double recurrent = ProductTime(r_bytes, packed.r.k * planes(config.h_bits), hidden_columns, args.batch);
  const double projection = ProductTime(w_bytes / static_cast<double>(args.time), packed.w.k * planes(config.x_bits),
                                        hidden_columns, args.batch);
  Division division;
  if (!IsWorthThreads((recurrent + projection) * static_cast<double>(args.time))) return division;
  const int64_t threads = std::min(members, processors);
  if (threads > 1 && args.batch >= kernels.rows_at_once * threads && r_bytes <= kPrivateWeights) {
    division.groups = threads;
  } else if (args.time == 1 || recurrent >= kSharedStep) {
    const double most = (args.time == 1 ? recurrent + projection : recurrent) / kPartOfAStep;
    division.parts = std::min({processors, Team::kMaxMembers, std::max<int64_t>(1, static_cast<int64_t>(most))});
  }
  return division;
}

Division PackedCell::Divide(const CellConfig& config, const KernelTable& kernels, const CellArgs& args,
                            int64_t members) const {
  return rnnqc::Divide(config, kernels, *this, r.bytes(), r.start.size(), args, members);
}

}  // namespace rnnqc
