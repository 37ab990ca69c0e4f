#include "cells/fixed_point/config.h"

#include <cmath>

#include "cells/driver/config_errors.h"

namespace rnnqc {
namespace {

// Multiples are integers in float64, and their differences fit into int64.
constexpr int64_t kLargestCode = int64_t{1} << 32;
// Codes that index tables, and those of activations.
constexpr int64_t kLargestWidth = 65535;
// Integers that adding a constant rounds correctly in binary32, with what is added to multiples before.
constexpr int64_t kLargestSingle = int64_t{1} << 20;
constexpr int64_t kLargestOffset = int64_t{1} << 20;

}  // namespace

void ValidatePoint(const GridPoint& point, int64_t index, GridUse use, bool single) {
  const std::string at = "[" + std::to_string(index) + "]";
  if (!(std::isfinite(point.scale) && point.scale >= 0)) {
    FailAttribute("grid_scale" + at, point.scale, "a finite number, 0 or more");
  }
  if (point.scale == 0) {
    if (use != GridUse::kOptional)
      FailAttribute("grid_scale" + at, point.scale, "a number above 0: this quantizer is needed");
    return;
  }
  if (point.min < -kLargestCode || point.min > kLargestCode) {
    FailAttribute("grid_min" + at, point.min, "-2^32 .. 2^32");
  }
  if (point.max < point.min || point.max > kLargestCode) {
    FailAttribute("grid_max" + at, point.max, "grid_min" + at + " = " + std::to_string(point.min) + " .. 2^32");
  }
  if (point.zero_point < point.min || point.zero_point > point.max) {
    FailAttribute("grid_zero_point" + at, point.zero_point,
                  std::to_string(point.min) + " .. " + std::to_string(point.max) + ", a code of this quantizer");
  }
  if (point.offset < -kLargestOffset || point.offset > kLargestOffset) {
    FailAttribute("grid_offset" + at, point.offset, "-2^20 .. 2^20");
  }
  if (single && (point.low() < -kLargestSingle || point.high() > kLargestSingle)) {
    FailAttribute("grid_max" + at, point.max, "codes up to 2^20 from the zero point for arithmetic \"grid32\"");
  }
  if (use == GridUse::kCodes && point.min < 0)
    FailAttribute("grid_min" + at, point.min, "0 or more for codes of a matrix product");
  if (use == GridUse::kCodes && point.max > kLargestWidth) {
    FailAttribute("grid_max" + at, point.max, "up to 65535 for codes of a matrix product");
  }
  if (use == GridUse::kIndex && point.max - point.min > kLargestWidth) {
    FailAttribute("grid_max" + at, point.max, "at most grid_min" + at + " + 65535 for codes that index a table");
  }
}

}  // namespace rnnqc
