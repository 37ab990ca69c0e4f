#include "cells/fixed_point/byte_form.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace rnnqc {
namespace {

// Arguments of rne() and everything before it stay below these.
constexpr double kLargestUnits = 0x1p30;
constexpr double kLargestNumber = 0x1p60;
// Allowed distance between values and multiples of their unit.
constexpr double kUnitTolerance = 1e-4;
// Number of ratios to try on each side, in ULPs of the likely one.
constexpr int kRatioSteps = 4;

bool Fits(const GridPoint& point) { return point.low() >= INT8_MIN && point.high() <= INT8_MAX; }

bool RoundsLikeBytes(const GridPoint& point) { return point.rounding == GridRounding::kHalfEven && point.offset == 0; }

ByteRange RangeOf(const GridPoint& point) {
  return {static_cast<int8_t>(point.low()), static_cast<int8_t>(point.high())};
}

// Quantizes each of the values as the kernels of the general form do.
void Multiples(const KernelTable& kernels, const GridPoint& point, std::vector<float>* values) {
  GridCodesArgs<float> codes{};
  codes.n = static_cast<int64_t>(values->size());
  codes.x = values->data();
  codes.quantizer = Quantizer<float>(point);
  codes.multiples = values->data();
  SelectGridKernels<float>(kernels.isa).codes(codes);
}

// The values of finite floats in ascending order have ascending keys.
int32_t Key(float value) {
  int32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits < 0 ? std::numeric_limits<int32_t>::min() - bits : bits;
}

float OfKey(int32_t key) {
  const int32_t bits = key < 0 ? std::numeric_limits<int32_t>::min() - key : key;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// The least values whose multiples are low + 1, low + 2, ... high.
std::vector<float> Thresholds(const KernelTable& kernels, const GridPoint& point) {
  const size_t count = static_cast<size_t>(point.high() - point.low());
  std::vector<int64_t> below(count, Key(-static_cast<float>(kLargestNumber)));
  std::vector<int64_t> reached(count, Key(static_cast<float>(kLargestNumber)));
  std::vector<float> values(count);
  for (int bit = 0; bit < 32; ++bit) {
    for (size_t k = 0; k < count; ++k) values[k] = OfKey(static_cast<int32_t>((below[k] + reached[k]) >> 1));
    Multiples(kernels, point, &values);
    for (size_t k = 0; k < count; ++k) {
      const int64_t middle = (below[k] + reached[k]) >> 1;
      const bool reaches = static_cast<int64_t>(values[k]) > point.low() + static_cast<int64_t>(k);
      (reaches ? reached : below)[k] = middle;
    }
  }
  for (size_t k = 0; k < count; ++k) values[k] = OfKey(static_cast<int32_t>(reached[k]));
  return values;
}

// Both quantizers are monotone: equal on both sides of all steps, they are equal everywhere.
bool FindInverse(const KernelTable& kernels, const GridPoint& point, float* inverse, float* rest) {
  const double scale = static_cast<double>(point.scale);
  *inverse = static_cast<float>(1.0 / scale);
  *rest = static_cast<float>((1.0 - static_cast<double>(*inverse) * scale) / scale);
  const std::vector<float> thresholds = Thresholds(kernels, point);
  for (size_t k = 0; k < thresholds.size(); ++k) {
    const float values[] = {thresholds[k], OfKey(Key(thresholds[k]) - 1)};
    bool reaches[2];
    for (int i = 0; i < 2; ++i) {
      const float last = values[i] * *rest;
      const float units = std::nearbyint(std::fma(values[i], *inverse, last));
      reaches[i] = units > static_cast<float>(point.low() + static_cast<int64_t>(k));
    }
    if (!reaches[0] || reaches[1]) return false;
  }
  return true;
}

// Codes `low` .. `high` that the values are multiples of, and their unit. Codes of kByteCodes entries, of the multiples
// `first`, first + 1, ...
struct Codes {
  int64_t first = 0;
  std::vector<float> values;
  std::vector<int32_t> codes;
  double unit = 0;

  bool Find(int32_t low, int32_t high) {
    double largest = 0;
    std::vector<float> sorted = values;
    sorted.push_back(0.0f);
    std::sort(sorted.begin(), sorted.end());
    for (const float value : values) {
      if (!(std::fabs(value) < kLargestNumber)) return false;
      largest = std::max(largest, std::fabs(static_cast<double>(value)));
    }
    double least = largest;
    for (size_t i = 1; i < sorted.size(); ++i) {
      const double step = static_cast<double>(sorted[i]) - static_cast<double>(sorted[i - 1]);
      if (step > kUnitTolerance * largest) least = std::min(least, step);
    }
    codes.assign(values.size(), 0);
    if (largest == 0) {
      unit = 1;
      return true;
    }
    for (int divisor = 1; divisor <= 4; ++divisor) {
      unit = largest / std::nearbyint(largest / (least / divisor));
      if (Assign(low, high)) return true;
    }
    return false;
  }

  bool Assign(int32_t low, int32_t high) {
    for (size_t i = 0; i < values.size(); ++i) {
      const double units = static_cast<double>(values[i]) / unit;
      const double code = std::nearbyint(units);
      if (!(std::fabs(units - code) <= 256 * kUnitTolerance) || code < low || code > high) return false;
      codes[i] = static_cast<int32_t>(code);
    }
    return true;
  }

  void Write(uint8_t* table) const {
    std::memset(table, 0, kByteCodes);
    for (size_t i = 0; i < codes.size(); ++i) {
      table[static_cast<uint8_t>(first + static_cast<int64_t>(i))] = static_cast<uint8_t>(codes[i]);
    }
  }
};

Codes Entries(const float* table, const GridPoint& argument) {
  Codes codes;
  codes.first = argument.low();
  codes.values.assign(table, table + (argument.high() - argument.low() + 1));
  return codes;
}

// Finds a ratio that turns products of codes into the multiples that the quantizer gives for products of values.
bool FindRatio(const KernelTable& kernels, const GridPoint& point, const Codes& a, const Codes& b, float* ratio) {
  const size_t count = a.values.size() * b.values.size();
  std::vector<float> expected(count);
  std::vector<float> products(count);
  double largest = 0;
  for (size_t i = 0; i < a.values.size(); ++i) {
    for (size_t j = 0; j < b.values.size(); ++j) {
      expected[i * b.values.size() + j] = a.values[i] * b.values[j];
      const float product = static_cast<float>(a.codes[i] * b.codes[j]);
      products[i * b.values.size() + j] = product;
      largest = std::max(largest, std::fabs(static_cast<double>(product)));
    }
  }
  Multiples(kernels, point, &expected);
  const double likely = a.unit * b.unit / static_cast<double>(point.scale);
  if (!(likely > 1 / kLargestNumber && likely < kLargestNumber && largest * likely < 0x1p20)) return false;
  constexpr float shift = 12582912.0f;  // 1.5 * 2^23: rounds what is below 2^21 to whole numbers, half to even
  const float low = static_cast<float>(point.low());
  const float high = static_cast<float>(point.high());
  for (int step = 0; step <= 2 * kRatioSteps; ++step) {
    const int away = step % 2 == 0 ? step / 2 : -(step + 1) / 2;
    const float candidate = OfKey(Key(static_cast<float>(likely)) + away);
    bool same = true;
    for (size_t i = 0; i < count; ++i) {
      const float units = (products[i] * candidate + shift) - shift;
      const float limited = units < low ? low : units > high ? high : units;
      same = same && limited == expected[i];
    }
    if (!same) continue;
    *ratio = candidate;
    return true;
  }
  return false;
}

// Whether the cell's quantizer only limits sums of kept and added multiples.
bool AddsMultiples(const KernelTable& kernels, const GridPoint& kept, const GridPoint& added, const GridPoint& cell) {
  std::vector<float> sums;
  std::vector<float> expected;
  for (int64_t k = kept.low(); k <= kept.high(); ++k) {
    const float first = static_cast<float>(k) * kept.scale;
    for (int64_t a = added.low(); a <= added.high(); ++a) {
      sums.push_back(first + static_cast<float>(a) * added.scale);
      expected.push_back(static_cast<float>(std::min(std::max(k + a, cell.low()), cell.high())));
    }
  }
  Multiples(kernels, cell, &sums);
  return sums == expected;
}

// Whether no argument of rne() can be too large.
bool IsLimited(const LstmConfig& config, const CellParameters& parameters) {
  const int64_t hidden = config.hidden_size;
  const double x_sum = 255.0 * 128.0 * static_cast<double>(parameters.w.k);
  const double h_sum = 255.0 * 128.0 * static_cast<double>(parameters.r.k);
  for (int64_t gate = 0; gate < kGates; ++gate) {
    if (!config.gate_is_used(static_cast<int>(gate))) continue;
    const double scale = static_cast<double>(config.grid.acc(gate).scale);
    for (int64_t j = gate * hidden; j < (gate + 1) * hidden; ++j) {
      const double largest = x_sum * std::fabs(static_cast<double>(parameters.x_multiplier[j])) +
                             h_sum * std::fabs(static_cast<double>(parameters.h_multiplier[j])) +
                             std::fabs(static_cast<double>(parameters.bias[j]));
      if (!(largest / scale < kLargestUnits && largest < kLargestNumber)) return false;
    }
  }
  return true;
}

bool IsNormal(float scale) { return scale > 1 / kLargestNumber && scale < kLargestNumber; }

bool MayHaveBytes(const LstmConfig& config, const CellParameters& parameters) {
  if (config.arithmetic != Arithmetic::kGrid32 || !config.grid.rounded_output) return false;
  if (config.grid.accumulator_bits != 0 || config.x_bits != 8 || config.h_bits != 8) return false;
  const bool plain = parameters.w.wide == nullptr && parameters.r.wide == nullptr &&
                     parameters.w.zero_point == nullptr && parameters.r.zero_point == nullptr;
  if (!plain || parameters.peephole != nullptr) return false;
  const GridPoint* points = config.grid.points;
  for (const int64_t i : {GridPlaces::kInput, GridPlaces::kHidden, LstmGrid::kCell}) {
    if (!RoundsLikeBytes(points[i])) return false;
  }
  const GridPlaces& places = config.grid.places;
  for (int64_t i = 0; i < LstmGrid::kCount; ++i) {
    const bool product = i >= places.input_product(0) && i < places.acc(0);
    const bool unused = config.input_forget && i == places.acc(kForgetGate);
    if (unused) continue;
    if (product ? points[i].scale != 0 : !IsNormal(points[i].scale)) return false;
    if (!product && i != GridPlaces::kInput && !Fits(points[i])) return false;
  }
  for (int gate = 0; gate < kGates; ++gate) {
    if (std::isfinite(config.gates[gate].min) || std::isfinite(config.gates[gate].max)) return false;
  }
  return IsLimited(config, parameters);
}

}  // namespace

bool FindGridBytes(const LstmConfig& config, const KernelTable& kernels, const CellParameters& parameters,
                   const float* gate_table, const float* cell_table, GridBytes* form) {
  if (!MayHaveBytes(config, parameters)) return false;
  const GridPoint* points = config.grid.points;
  const GridPoint& cell = points[LstmGrid::kCell];
  const GridPoint& kept = points[LstmGrid::kKept];
  const GridPoint& added = points[LstmGrid::kAdded];
  const GridPoint& hidden = config.grid.hidden();
  *form = GridBytes{};
  form->input_forget = config.input_forget;
  Codes gates[kGates];
  for (int gate = 0; gate < kGates; ++gate) {
    const bool coupled = config.input_forget && gate == kForgetGate;
    const int source = coupled ? kInputGate : gate;
    const GridPoint& acc = config.grid.acc(source);
    gates[gate] = Entries(gate_table + config.gates[source].table_offset, acc);
    if (coupled) {
      for (float& value : gates[gate].values) value = config.one - value;
    }
    if (!gates[gate].Find(gate == kCellGate ? INT8_MIN : 0, gate == kCellGate ? INT8_MAX : UINT8_MAX)) return false;
    gates[gate].Write(form->gate_codes[gate]);
    form->gate[gate] = RangeOf(acc);
    form->scale[gate] = acc.scale;
    if (!FindInverse(kernels, acc, &form->inverse[gate], &form->rest[gate])) return false;
  }
  Codes squashed = Entries(cell_table, cell);
  if (!squashed.Find(INT8_MIN, INT8_MAX)) return false;
  squashed.Write(form->cell_codes);
  Codes state;
  state.unit = static_cast<double>(cell.scale);
  for (int64_t multiple = cell.low(); multiple <= cell.high(); ++multiple) {
    state.codes.push_back(static_cast<int32_t>(multiple));
    state.values.push_back(static_cast<float>(multiple) * cell.scale);
  }
  form->kept = RangeOf(kept);
  form->added = RangeOf(added);
  form->cell = RangeOf(cell);
  form->hidden = RangeOf(hidden);
  form->h_scale = hidden.scale;
  form->h_zero_point = static_cast<uint8_t>(hidden.zero_point);
  return FindRatio(kernels, kept, gates[kForgetGate], state, &form->kept_ratio) &&
         FindRatio(kernels, added, gates[kInputGate], gates[kCellGate], &form->added_ratio) &&
         AddsMultiples(kernels, kept, added, cell) &&
         FindRatio(kernels, hidden, gates[kOutputGate], squashed, &form->hidden_ratio);
}

}  // namespace rnnqc
