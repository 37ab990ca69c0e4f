#include "kernels/common/reciprocal.h"

#include <cmath>
#include <limits>

namespace rnnqc {
namespace {

// Products with `lower` of values near the first code stay normal numbers.
constexpr float kSmallestScale = 0x1p-60f;
constexpr float kLargestScale = 0x1p60f;

float Quotient(float x, float scale) { return std::nearbyint(x / scale); }

float Product(float x, const Reciprocal& reciprocal) {
  return std::nearbyint(std::fma(x, reciprocal.upper, x * reciprocal.lower));
}

float Before(float x) { return std::nextafter(x, 0.0f); }

// The least x whose quotient is at least `code`.
float LeastOfCode(float code, float scale) {
  float x = static_cast<float>((static_cast<double>(code) - 0.5) * static_cast<double>(scale));
  while (Quotient(x, scale) < code) x = std::nextafter(x, std::numeric_limits<float>::infinity());
  while (Quotient(Before(x), scale) >= code) x = Before(x);
  return x;
}

}  // namespace

// Both forms are odd and never fall: what `upper` adds from one float to the next is some 2^23 times what the rounding
// of the smaller product can take away. So they agree everywhere if they agree on both sides of each step.
Reciprocal FindReciprocal(float scale) {
  if (!(scale >= kSmallestScale && scale <= kLargestScale)) return {};
  const double quotient = 1.0 / static_cast<double>(scale);
  Reciprocal found{static_cast<float>(quotient), 0.0f, true};
  found.lower = static_cast<float>(quotient - static_cast<double>(found.upper));
  for (float code = 1.0f; code <= kLargestByteCode + 1.0f && found.exact; ++code) {
    const float x = LeastOfCode(code, scale);
    found.exact = Product(x, found) >= code && Product(Before(x), found) < code;
  }
  return found;
}

}  // namespace rnnqc
