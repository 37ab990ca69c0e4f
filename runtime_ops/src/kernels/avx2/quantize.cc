// Codes of rows, and the sums of their bytes: eight values to a register.

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/common/compiler.h"
#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

#include "kernels/avx2/linear.inc"

// Values x[i] .. x[i + 7], zeros from n on.
inline __m256 LoadFirst(const float* x, int64_t i, int64_t n) {
  if (i + 8 <= n) return _mm256_loadu_ps(x + i);
  return i < n ? _mm256_maskload_ps(x + i, FirstLanes(n - i)) : _mm256_setzero_ps();
}

inline __m256 ZeroForNan(__m256 value) { return _mm256_and_ps(value, _mm256_cmp_ps(value, value, _CMP_ORD_Q)); }

inline void StoreFirstBytes(uint8_t* to, int64_t count, __m128i bytes) {
  uint8_t sixteen[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(count >= 16 ? to : sixteen), bytes);
  if (count < 16) std::memcpy(to, sixteen, static_cast<size_t>(count));
}

}  // namespace

// The operand order of min and max below lets NaN yield to the second operand, and -0 to its +0.

float f32_max_abs__avx2(const float* x, int64_t n) {
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  __m256 largest = _mm256_setzero_ps();
  for (int64_t i = 0; i < n; i += 8) largest = _mm256_max_ps(_mm256_and_ps(LoadFirst(x, i, n), magnitude), largest);
  float lanes[8];
  _mm256_storeu_ps(lanes, largest);
  float result = 0.0f;
  for (const float lane : lanes) result = lane > result ? lane : result;
  return result;
}

MinMax f32_min_max__avx2(const float* x, int64_t n) {
  __m256 least = _mm256_setzero_ps();
  __m256 largest = _mm256_setzero_ps();
  for (int64_t i = 0; i < n; i += 8) {
    const __m256 value = LoadFirst(x, i, n);
    least = _mm256_min_ps(value, least);
    largest = _mm256_max_ps(value, largest);
  }
  float low[8];
  float high[8];
  _mm256_storeu_ps(low, least);
  _mm256_storeu_ps(high, largest);
  MinMax range{0.0f, 0.0f};
  for (int64_t lane = 0; lane < 8; ++lane) {
    range.min = low[lane] < range.min ? low[lane] : range.min;
    range.max = high[lane] > range.max ? high[lane] : range.max;
  }
  return range;
}

void f32_u8_quantize_row__avx2(const float* x, int64_t n, float scale, int32_t zero_point, uint8_t* codes) {
  const Grid grid(scale, zero_point);
  for (int64_t i = 0; i < n; i += 16) {
    const __m256 first = ZeroForNan(LoadFirst(x, i, n));
    const __m256 second = ZeroForNan(LoadFirst(x, i + 8, n));
    StoreFirstBytes(codes + i, n - i, grid(first, second));
  }
}

void f32_u16_quantize_row__avx2(const float* x, int64_t n, float scale, int32_t zero_point, uint8_t* high,
                                uint8_t* low) {
  const Grid grid(scale, zero_point, 65535);
  for (int64_t i = 0; i < n; i += 16) {
    const __m256i words = grid.Words(ZeroForNan(LoadFirst(x, i, n)), ZeroForNan(LoadFirst(x, i + 8, n)));
    StoreFirstBytes(high + i, n - i, Grid::Bytes(_mm256_srli_epi16(words, 8)));
    StoreFirstBytes(low + i, n - i, Grid::Bytes(_mm256_and_si256(words, _mm256_set1_epi16(255))));
  }
}

void s32_f32_join__avx2(const JoinArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    const int32_t* high = args.acc + 2 * row * args.acc_stride;
    const int32_t* low = high + args.acc_stride;
    const __m256i z_high = _mm256_set1_epi32(args.zero_point[2 * row]);
    const __m256i z_low = _mm256_set1_epi32(args.zero_point[2 * row + 1]);
    // Without row scales the factor is 1, which changes nothing.
    const __m256 scale = _mm256_set1_ps(args.row_scale != nullptr ? args.row_scale[row] : 1.0f);
    const float* bias = args.bias + row * args.bias_stride;
    float* p = args.p + row * args.p_stride;
    const auto sums = [&](const int32_t* acc, __m256i start, __m256i z) {
      const __m256i sum = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(acc));
      return _mm256_cvtepi32_ps(_mm256_add_epi32(sum, _mm256_mullo_epi32(start, z)));
    };
    for (int64_t j = args.block_begin * kBlockColumns; j < args.block_end * kBlockColumns; j += 8) {
      const __m256i start = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(args.start + j));
      const __m256 upper = _mm256_mul_ps(sums(high + j, start, z_high), _mm256_set1_ps(256.0f));
      const __m256 value = _mm256_mul_ps(_mm256_add_ps(upper, sums(low + j, start, z_low)), scale);
      const __m256 product = _mm256_mul_ps(value, _mm256_loadu_ps(args.multiplier + j));
      _mm256_storeu_ps(p + j, _mm256_add_ps(product, _mm256_loadu_ps(bias + j)));
    }
  }
}

}  // namespace rnnqc
