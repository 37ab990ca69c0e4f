#ifndef RNNQC_CELLS_GRID_CONFIG_H_
#define RNNQC_CELLS_GRID_CONFIG_H_

#include <cmath>
#include <cstdint>
#include <string>

#include "kernels/grid_kernels.h"

namespace rnnqc {

// One entry of the attributes grid_*. With scale 0 the quantizer passes values on and nothing else counts.
struct GridPoint {
  float scale = 0;
  int64_t zero_point = 0;
  int64_t min = 0;
  int64_t max = 0;
  GridRounding rounding = GridRounding::kHalfEven;
  int64_t offset = 0;  // added before rounding, taken off after

  int64_t low() const { return min - zero_point; }
  int64_t high() const { return max - zero_point; }
};

// What kernels need of it.
template <typename Real>
GridQuantizer<Real> Quantizer(const GridPoint& point) {
  GridQuantizer<Real> quantizer{};
  quantizer.scale = static_cast<Real>(point.scale);
  quantizer.rounding = point.rounding;
  if (point.scale == 0) return quantizer;
  quantizer.low = static_cast<Real>(point.low() + point.offset);
  quantizer.high = static_cast<Real>(point.high() + point.offset);
  quantizer.offset = static_cast<Real>(point.offset);
  int exponent = 0;
  const Real inverse = 1 / quantizer.scale;
  // Multiplying by the inverse of a power of two is dividing by it.
  if (std::frexp(quantizer.scale, &exponent) == Real(0.5) && std::isnormal(inverse)) quantizer.inverse = inverse;
  return quantizer;
}

// The order of the attributes grid_*.
struct GridOrder {
  static constexpr int64_t kInput = 0;
  static constexpr int64_t kHidden = 1;
  static constexpr int64_t kInputProduct = 2;  // of the gates i, o, f, c
  static constexpr int64_t kHiddenProduct = kInputProduct + kGates;
  static constexpr int64_t kAcc = kHiddenProduct + kGates;
  static constexpr int64_t kKept = kAcc + kGates;
  static constexpr int64_t kAdded = kKept + 1;
  static constexpr int64_t kCell = kAdded + 1;
  static constexpr int64_t kCount = kCell + 1;
};

// What the arithmetic "grid" needs besides the attributes both arithmetics have.
struct GridConfig {
  GridPoint points[GridOrder::kCount];
  int64_t accumulator_bits = 0;  // sums of products saturate; 0: they do not
  bool rounded_output = false;
};

// "grid_scale[2]" and so on; throws std::invalid_argument, naming the attribute, for a value the operator does not
// allow. `forget_gate`: whether gate f is used.
// `single`: whether the arithmetic is in binary32.
void ValidateGrid(const GridConfig& config, bool forget_gate, bool single);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_GRID_CONFIG_H_
