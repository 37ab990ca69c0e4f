// Codes of rows, and the sums of their bytes: sixteen values to a register.

#include <immintrin.h>

#include <cstdint>

#include "kernels/common/compiler.h"
#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

constexpr int64_t kInputPrefetchBytes = 4096;

// x / scale, in less time than divisions take: x times the rounded reciprocal is at most 1.5 units of the last place
// off, one correction by the exact remainder leaves less than one, and the next one rounds as a division does
// (Markstein, Computation of elementary functions on the IBM RISC System/6000 processor, 1990, theorem 8.1). For
// quotients that codes may come of: others are limited before, to the same side of all codes; those below 2^-10 may be
// less exact, and are code 0. The limits of the scale keep remainders normal numbers.
class Quotients {
 public:
  explicit Quotients(float scale)
      : scale_(_mm512_set1_ps(scale)),
        reciprocal_(_mm512_set1_ps(1.0f / scale)),
        limit_(_mm512_set1_ps(scale * 0x1p20f)),
        divides_(!(scale >= 0x1p-60f && scale <= 0x1p60f)) {}

  // Without NaN.
  __m512 operator()(__m512 value) const {
    if (divides_) return _mm512_div_ps(value, scale_);
    const __m512 x = _mm512_max_ps(_mm512_min_ps(value, limit_), _mm512_sub_ps(_mm512_setzero_ps(), limit_));
    __m512 quotient = _mm512_mul_ps(x, reciprocal_);
    quotient = _mm512_fmadd_ps(_mm512_fnmadd_ps(quotient, scale_, x), reciprocal_, quotient);
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(quotient, scale_, x), reciprocal_, quotient);
  }

 private:
  __m512 scale_, reciprocal_, limit_;
  bool divides_;
};

// The grid of unsigned codes up to `largest`; NaN counts as 0.
class Grid {
 public:
  Grid(float scale, int32_t zero_point, int32_t largest)
      : quotients_(scale),
        min_(_mm512_set1_ps(static_cast<float>(-zero_point))),
        max_(_mm512_set1_ps(static_cast<float>(largest - zero_point))),
        zero_point_(_mm512_set1_epi32(zero_point)) {}

  __m512i operator()(__m512 x) const {
    const __m512 value = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x);
    const __m512 limited = _mm512_max_ps(_mm512_min_ps(quotients_(value), max_), min_);
    return _mm512_add_epi32(_mm512_cvtps_epi32(limited), zero_point_);
  }

 private:
  Quotients quotients_;
  __m512 min_, max_;
  __m512i zero_point_;
};

constexpr __mmask16 kAllLanes = 0xffff;

// visit(first element, lanes) for all vectors of n elements; only the last one may be partial.
template <typename Visit>
RNNQC_FORCEINLINE void ForEachVector(int64_t n, const Visit& visit) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) visit(i, kAllLanes);
  if (i < n) visit(i, static_cast<__mmask16>((1u << (n - i)) - 1));
}

}  // namespace

// The operand order of min and max below lets NaN yield to the second operand, and -0 to its +0.

float f32_max_abs__avx512vnni(const float* x, int64_t n) {
  __m512 largest = _mm512_setzero_ps();
  ForEachVector(n, [&](int64_t i, __mmask16 lanes) {
    largest = _mm512_max_ps(_mm512_abs_ps(_mm512_maskz_loadu_ps(lanes, x + i)), largest);
  });
  return _mm512_reduce_max_ps(largest);
}

MinMax f32_min_max__avx512vnni(const float* x, int64_t n) {
  __m512 least = _mm512_setzero_ps();
  __m512 largest = _mm512_setzero_ps();
  ForEachVector(n, [&](int64_t i, __mmask16 lanes) {
    const __m512 value = _mm512_maskz_loadu_ps(lanes, x + i);
    _mm_prefetch(reinterpret_cast<const char*>(x + i) + kInputPrefetchBytes, _MM_HINT_T0);
    least = _mm512_min_ps(value, least);
    largest = _mm512_max_ps(value, largest);
  });
  return {_mm512_reduce_min_ps(least), _mm512_reduce_max_ps(largest)};
}

void f32_u8_quantize_row__avx512vnni(const float* x, int64_t n, float scale, int32_t zero_point, uint8_t* codes) {
  const Grid grid(scale, zero_point, 255);
  ForEachVector(n, [&](int64_t i, __mmask16 lanes) {
    const __m512i code = grid(_mm512_maskz_loadu_ps(lanes, x + i));
    if (lanes == kAllLanes) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), _mm512_cvtepi32_epi8(code));
    } else {
      _mm512_mask_cvtepi32_storeu_epi8(codes + i, lanes, code);
    }
  });
}

void f32_u16_quantize_row__avx512vnni(const float* x, int64_t n, float scale, int32_t zero_point, uint8_t* high,
                                      uint8_t* low) {
  const Grid grid(scale, zero_point, 65535);
  ForEachVector(n, [&](int64_t i, __mmask16 lanes) {
    const __m512i code = grid(_mm512_maskz_loadu_ps(lanes, x + i));
    _mm512_mask_cvtepi32_storeu_epi8(high + i, lanes, _mm512_srli_epi32(code, 8));
    _mm512_mask_cvtepi32_storeu_epi8(low + i, lanes, code);
  });
}

void s32_f32_join__avx512vnni(const JoinArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    const int32_t* high = args.acc + 2 * row * args.acc_stride;
    const int32_t* low = high + args.acc_stride;
    const __m512i z_high = _mm512_set1_epi32(args.zero_point[2 * row]);
    const __m512i z_low = _mm512_set1_epi32(args.zero_point[2 * row + 1]);
    const float* bias = args.bias + row * args.bias_stride;
    float* p = args.p + row * args.p_stride;
    for (int64_t j = args.block_begin * kBlockColumns; j < args.block_end * kBlockColumns; j += 16) {
      const __m512i start = _mm512_loadu_si512(args.start + j);
      const __m512i high_sum = _mm512_add_epi32(_mm512_loadu_si512(high + j), _mm512_mullo_epi32(start, z_high));
      const __m512i low_sum = _mm512_add_epi32(_mm512_loadu_si512(low + j), _mm512_mullo_epi32(start, z_low));
      const __m512 upper = _mm512_mul_ps(_mm512_cvtepi32_ps(high_sum), _mm512_set1_ps(256.0f));
      __m512 value = _mm512_add_ps(upper, _mm512_cvtepi32_ps(low_sum));
      if (args.row_scale != nullptr) value = _mm512_mul_ps(value, _mm512_set1_ps(args.row_scale[row]));
      value = _mm512_mul_ps(value, _mm512_loadu_ps(args.multiplier + j));
      _mm512_storeu_ps(p + j, _mm512_add_ps(value, _mm512_loadu_ps(bias + j)));
    }
  }
}

}  // namespace rnnqc
