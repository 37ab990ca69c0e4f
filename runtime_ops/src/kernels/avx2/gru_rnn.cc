// The cells without a cell state: eight units to a register.

#include <immintrin.h>

#include <cstdint>

#include "kernels/common/compiler.h"
#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

#include "kernels/avx2/linear.inc"

constexpr int64_t kMostBlocks = kChunk;

inline Floats Load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline void Store(float* to, const Floats& value) {
  _mm256_storeu_ps(to, value.low);
  _mm256_storeu_ps(to + 8, value.high);
}
inline __m256 Sums8(const int32_t* from) {
  return _mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline Floats Sums(const int32_t* from) { return {Sums8(from), Sums8(from + 8)}; }
inline Floats Splat(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline Floats Add(const Floats& a, const Floats& b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline Floats Subtract(const Floats& a, const Floats& b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline Floats Multiply(const Floats& a, const Floats& b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Floats Limit(const Floats& v, const Floats& lo, const Floats& hi) {
  return {Limit(v.low, lo.low, hi.low), Limit(v.high, lo.high, hi.high)};
}

inline Floats Divide(const Floats& a, const Floats& b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
inline Floats Max(const Floats& a, const Floats& b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
inline Floats Min(const Floats& a, const Floats& b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
inline __m256 Magnitude(__m256 v) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v); }
inline Floats Magnitude(const Floats& v) { return {Magnitude(v.low), Magnitude(v.high)}; }
inline Floats WhereNegative(const Floats& v, const Floats& a, const Floats& b) {
  return {_mm256_blendv_ps(b.low, a.low, v.low), _mm256_blendv_ps(b.high, a.high, v.high)};
}
inline __m256 WhereGreater(__m256 v, __m256 limit) { return _mm256_and_ps(v, _mm256_cmp_ps(v, limit, _CMP_GT_OQ)); }
inline Floats WhereGreater(const Floats& v, const Floats& limit) {
  return {WhereGreater(v.low, limit.low), WhereGreater(v.high, limit.high)};
}
inline __m256 Number(__m256 v) { return _mm256_and_ps(v, _mm256_cmp_ps(v, v, _CMP_ORD_Q)); }
inline Floats Number(const Floats& v) { return {Number(v.low), Number(v.high)}; }
inline Floats Entries(const float* table, const Floats& v) {
  return {_mm256_i32gather_ps(table, _mm256_cvttps_epi32(v.low), 4),
          _mm256_i32gather_ps(table, _mm256_cvttps_epi32(v.high), 4)};
}

inline void StoreFirst(float* to, int64_t count, const Floats& value) {
  if (count >= kBlockUnits) return Store(to, value);
  _mm256_maskstore_ps(to, FirstLanes(count), value.low);
  if (count > 8) _mm256_maskstore_ps(to + 8, FirstLanes(count - 8), value.high);
}

const LinearTables kNoTables{};

template <bool kLinear>
class Tables {
 public:
  explicit Tables(const HiddenCellArgs& args)
      : linear_(kLinear ? *args.linear : kNoTables),
        form_(linear_, linear_.gate_shift),
        // Indices up to 2^16 - 1 and the zero up to 2^15: codes fit into int16, modulo 2^16 as the subtraction goes.
        zero_(_mm256_set1_epi16(static_cast<int16_t>(linear_.gate_zero))) {
    for (int g = 0; g < kGates; ++g) {
      table_[g] = args.gate_table[g];
      min_[g] = _mm256_set1_ps(args.gate_min[g]);
      max_[g] = _mm256_set1_ps(args.gate_max[g]);
      scale_[g] = _mm256_set1_ps(linear_.gate_scale[g] * 0x1p-16f);
      offset_[g] = _mm256_set1_ps(linear_.gate_offset[g]);
    }
  }

  // At most 2 * kMostBlocks.
  template <typename GateOf>
  void Look(Floats* v, int64_t count, const GateOf& gate_of) const {
    if (!kLinear) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t gate = gate_of(i);
        v[i] = {_mm256_i32gather_ps(table_[gate], Index(v[i].low, gate), 4),
                _mm256_i32gather_ps(table_[gate], Index(v[i].high, gate), 4)};
      }
      return;
    }
    Units codes[kMostBlocks];
    for (int64_t i = 0; i < count; i += 2) {
      const int64_t other = i + 1 < count ? i + 1 : i;
      codes[i / 2] = {Code(v[i], gate_of(i)), Code(v[other], gate_of(other))};
    }
    form_(codes, (count + 1) / 2);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t gate = gate_of(i);
      const __m256i t = i % 2 == 0 ? codes[i / 2].low : codes[i / 2].high;
      v[i] = {_mm256_add_ps(_mm256_mul_ps(Low(t), scale_[gate]), offset_[gate]),
              _mm256_add_ps(_mm256_mul_ps(High(t), scale_[gate]), offset_[gate])};
    }
  }

 private:
  __m256i Index(__m256 v, int64_t gate) const { return _mm256_cvttps_epi32(Limit(v, min_[gate], max_[gate])); }

  __m256i Code(const Floats& v, int64_t gate) const {
    return _mm256_sub_epi16(_mm256_packus_epi32(Index(v.low, gate), Index(v.high, gate)), zero_);
  }

  const LinearTables& linear_;
  LinearForm form_;
  __m256i zero_;
  const float* table_[kGates];
  __m256 min_[kGates], max_[kGates], scale_[kGates], offset_[kGates];
};

class Codes {
 public:
  explicit Codes(const HiddenCellArgs& args) : grid_(args.h_scale, args.h_zero_point) {}

  void Store(const Floats* values, int64_t count, uint8_t* h) const {
    for (int64_t b = 0; b < count; ++b) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(h + b * kBlockUnits), grid_(values[b].low, values[b].high));
    }
  }

 private:
  Grid grid_;
};

#define RNNQC_HIDDEN_UNROLL
#include "kernels/common/gru_rnn.inc"

template <typename Visit>
inline void InChunks(int64_t begin, int64_t end, const Visit& visit) {
  for (int64_t block = begin; block < end; block += kMostBlocks) visit(block, Least(kMostBlocks, end - block));
}

template <typename Step>
void Run(const HiddenCellArgs& args, int64_t, const Step& step) {
  RunTables<Tables>(args, step);
}

}  // namespace

RNNQC_HIDDEN_KERNELS(avx2)

}  // namespace rnnqc
