#ifndef RNNQC_CELLS_FIXED_POINT_CONFIG_H_
#define RNNQC_CELLS_FIXED_POINT_CONFIG_H_

#include <cmath>
#include <cstdint>
#include <string>

#include "kernels/common/fixed_point/fixed_point.h"

namespace rnnqc {

// One entry of the attributes grid_*. With scale 0 the quantizer returns values unchanged and ignores the rest.
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

// The point in the form that kernels use.
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

// The order of the attributes grid_* for a cell of so many gates; those that only its type has begin at own().
struct GridPlaces {
  static constexpr int64_t kInput = 0;
  static constexpr int64_t kHidden = 1;

  int64_t gates;

  constexpr int64_t input_product(int64_t gate) const { return kHidden + 1 + gate; }
  constexpr int64_t hidden_product(int64_t gate) const { return input_product(gates) + gate; }
  constexpr int64_t acc(int64_t gate) const { return hidden_product(gates) + gate; }
  constexpr int64_t own() const { return acc(gates); }
};

struct LstmGrid {
  static constexpr int64_t kKept = GridPlaces{kGates}.own();
  static constexpr int64_t kAdded = kKept + 1;
  static constexpr int64_t kCell = kAdded + 1;
  static constexpr int64_t kCount = kCell + 1;
};

// The attributes that only the arithmetic "grid" has.
struct GridConfig {
  explicit GridConfig(int64_t gates) : places{gates} {}

  GridPlaces places;
  GridPoint points[LstmGrid::kCount];  // of the type with most of them
  int64_t accumulator_bits = 0;        // sums of products saturate; 0: they do not
  bool rounded_output = false;         // LSTM only

  const GridPoint& input() const { return points[GridPlaces::kInput]; }
  const GridPoint& hidden() const { return points[GridPlaces::kHidden]; }
  const GridPoint& input_product(int64_t gate) const { return points[places.input_product(gate)]; }
  const GridPoint& hidden_product(int64_t gate) const { return points[places.hidden_product(gate)]; }
  const GridPoint& acc(int64_t gate) const { return points[places.acc(gate)]; }
};

// kCodes: of codes that matrices multiply. kIndex: of codes that index a table. Both are needed.
enum class GridUse { kOptional, kCodes, kIndex };

// Throws std::invalid_argument, naming "grid_scale[index]" and so on, for a value the operators do not allow.
// `single`: whether the arithmetic is in binary32.
void ValidatePoint(const GridPoint& point, int64_t index, GridUse use, bool single);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_FIXED_POINT_CONFIG_H_
