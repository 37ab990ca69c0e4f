#include "kernels/common/linear_tables.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace rnnqc {
namespace {

constexpr int32_t kMaxShift = 9;
constexpr int32_t kMaxCodes = 1 << 15;
// Scales and their product with 2^-16 are normal numbers.
constexpr float kSmallestScale = 0x1p-80f;
constexpr float kLargestScale = 0x1p80f;

// A table indexed by codes.
struct Codes {
  const float* zero;      // entry of code 0
  const float* negative;  // negative[k] is the entry of a code k < 0
  int32_t first;
  int32_t last;

  float operator[](int32_t k) const { return k < 0 ? negative[k] : zero[k]; }
};

struct Form {
  int32_t knots[kSegments + 1];
  int32_t shift;
  float scale;
  float offset;
};

float Entry(const Form& form, int32_t k) {
  const int32_t size = std::abs(k);
  const int32_t limit = (static_cast<int32_t>(kSegments) << form.shift) - 1;
  const int32_t u = size < limit ? size : limit;
  const int32_t j = u >> form.shift;
  const int32_t v = u - (j << form.shift);
  const int32_t half = (1 << form.shift) >> 1;
  const int32_t rise = ((form.knots[j + 1] - form.knots[j]) * v + half) >> form.shift;
  const int32_t magnitude = form.knots[j] + rise;
  const float scaled = static_cast<float>(k < 0 ? -magnitude : magnitude) * form.scale;
  return scaled + form.offset;
}

bool SameBits(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

// Whether the entries of the quantized values `sign` * (j * 2^shift + v) agree with the form, for v = `first` ..
// `last`. Compilers turn this loop into vector instructions: no branch, no call.
bool SameSegment(const Codes& codes, const Form& form, int32_t j, int32_t first, int32_t last, int32_t sign) {
  const float* const entries = (sign < 0 ? codes.negative : codes.zero) + sign * (j << form.shift);
  const int32_t knot = form.knots[j];
  const int32_t rise = form.knots[j + 1] - knot;
  const int32_t half = (1 << form.shift) >> 1;
  uint32_t differences = 0;
  for (int32_t v = first; v <= last; ++v) {
    const int32_t magnitude = knot + ((rise * v + half) >> form.shift);
    const float scaled = static_cast<float>(sign * magnitude) * form.scale;
    const float entry = scaled + form.offset;
    uint32_t expected = 0;
    uint32_t found = 0;
    std::memcpy(&expected, &entry, sizeof(entry));
    std::memcpy(&found, entries + sign * v, sizeof(entry));
    differences |= expected ^ found;
  }
  return differences == 0;
}

// The form with segments of 2^shift codes, if every entry agrees with it.
bool Fit(const Codes& codes, int32_t shift, Form* form) {
  const int32_t length = 1 << shift;
  const int32_t end = static_cast<int32_t>(kSegments) << shift;
  if (end - 1 > codes.last) return false;
  form->shift = shift;
  form->offset = codes[0];
  form->scale = (codes[end - 1] - form->offset) / static_cast<float>(kLargestKnot);
  if (!(form->scale >= kSmallestScale && form->scale <= kLargestScale)) return false;
  for (int32_t j = 0; j < kSegments; ++j) {
    const float knot = std::nearbyint((codes[j * length] - form->offset) / form->scale);
    if (!(std::fabs(knot) <= static_cast<float>(kLargestKnot))) return false;
    form->knots[j] = static_cast<int32_t>(knot);
  }
  form->knots[kSegments] = kLargestKnot;
  for (int32_t j = 0; j < kSegments; ++j) {
    if (form->knots[j + 1] - form->knots[j] > INT16_MAX) return false;
  }
  for (int32_t j = 0; j < kSegments; ++j) {
    if (!SameSegment(codes, *form, j, 0, length - 1, 1)) return false;
    // The entry of 0 is not among those of negative values, which may end within a segment.
    const int32_t last = std::min(length - 1, -codes.first - j * length);
    if (!SameSegment(codes, *form, j, j == 0 ? 1 : 0, last, -1)) return false;
  }
  for (int32_t k = end; k <= codes.last; ++k) {
    if (!SameBits(codes[k], Entry(*form, k))) return false;
  }
  for (int32_t k = codes.first; k <= -end; ++k) {
    if (!SameBits(codes[k], Entry(*form, k))) return false;
  }
  return true;
}

bool FitAny(const Codes& codes, Form* form) {
  for (int32_t shift = kMaxShift; shift >= 0; --shift) {
    if (Fit(codes, shift, form)) return true;
  }
  return false;
}

bool SameKnots(const Form& a, const Form& b) { return std::memcmp(a.knots, b.knots, sizeof(a.knots)) == 0; }

// The cell's table, which must have the knots of the gates'.
bool FindCell(const TableExtent& tables, const Form& gate, LinearTables* linear) {
  const int64_t half = tables.cell_table_size / 2;
  if (half > kMaxCodes) return false;
  const Codes codes{tables.cell_table, tables.cell_table + tables.cell_table_size, -static_cast<int32_t>(half),
                    static_cast<int32_t>(half) - 1};
  Form cell;
  if (!FitAny(codes, &cell) || !SameKnots(cell, gate) || !SameBits(cell.offset, 0.0f)) return false;
  linear->cell_shift = cell.shift;
  linear->cell_scale = cell.scale;
  return true;
}

// offset - kFusedZero * scale, if that is a float and T * scale + offset needs no more than one rounding.
bool FindStart(float scale, float offset, float* start) {
  int exponent = 0;
  const bool exact_product = std::frexp(scale, &exponent) == 0.5f || SameBits(offset, 0.0f);
  const double zero = static_cast<double>(kFusedZero) * static_cast<double>(scale);
  *start = static_cast<float>(static_cast<double>(offset) - zero);
  return exact_product && static_cast<double>(*start) + zero == static_cast<double>(offset);
}

// Sets the fused form from the other fields.
bool FindFused(const TableExtent& tables, LinearTables* linear) {
  for (int64_t j = 0; j < kSegments; ++j) {
    if (linear->rises[j] < 0) return false;
    // Behind the largest knot there is no rise, and half a unit less changes nothing.
    const int32_t knot = 2 * (linear->knots[j] + kLargestKnot);
    linear->fused_knots[j] = static_cast<uint16_t>(knot > UINT16_MAX ? UINT16_MAX : knot);
    linear->fused_rises[j] = static_cast<uint16_t>(2 * linear->rises[j]);
  }
  for (int64_t g = 0; g < tables.gates; ++g) {
    if (tables.gate_table[g] == nullptr) continue;
    if (!FindStart(linear->gate_scale[g], linear->gate_offset[g], &linear->gate_start[g])) return false;
  }
  return tables.cell_table == nullptr || FindStart(linear->cell_scale, 0.0f, &linear->cell_start);
}

}  // namespace

bool FindLinearTables(const TableExtent& tables, LinearTables* linear) {
  Form gate[kGates];
  int64_t first = 0;
  while (first < tables.gates && tables.gate_table[first] == nullptr) ++first;
  if (first == tables.gates) return false;
  const int32_t gate_zero = (static_cast<int32_t>(tables.gate_max[first]) + 1) / 2;
  if (gate_zero < 1 || gate_zero > kMaxCodes) return false;
  for (int64_t g = first; g < tables.gates; ++g) {
    if (tables.gate_table[g] == nullptr) continue;
    const float* zero = tables.gate_table[g] + gate_zero;
    const int32_t last = static_cast<int32_t>(tables.gate_max[g]) - gate_zero;
    if (last >= kMaxCodes) return false;
    if (!FitAny({zero, zero, -gate_zero, last}, &gate[g])) return false;
    if (gate[g].shift != gate[first].shift || !SameKnots(gate[g], gate[first])) return false;
    linear->gate_scale[g] = gate[g].scale;
    linear->gate_offset[g] = gate[g].offset;
  }
  if (tables.cell_table != nullptr && !FindCell(tables, gate[first], linear)) return false;
  linear->gate_zero = gate_zero;
  linear->gate_shift = gate[first].shift;
  for (int64_t j = 0; j < kSegments; ++j) {
    const int32_t rise = gate[first].knots[j + 1] - gate[first].knots[j];
    linear->knots[j] = static_cast<int16_t>(gate[first].knots[j]);
    linear->rises[j] = static_cast<int16_t>(rise);
    linear->bytes[0][j] = static_cast<uint8_t>(gate[first].knots[j] & 0xff);
    linear->bytes[1][j] = static_cast<uint8_t>((gate[first].knots[j] >> 8) & 0xff);
    linear->bytes[2][j] = static_cast<uint8_t>(rise & 0xff);
    linear->bytes[3][j] = static_cast<uint8_t>((rise >> 8) & 0xff);
  }
  linear->fused = FindFused(tables, linear);
  return true;
}

}  // namespace rnnqc
