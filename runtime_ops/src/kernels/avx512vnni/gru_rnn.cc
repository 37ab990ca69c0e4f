// The cells without a cell state: sixteen units to a register.

#include <immintrin.h>

#include <cstdint>

#include "kernels/common/compiler.h"
#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

#include "kernels/avx512vnni/linear.inc"

using Floats = __m512;
constexpr int64_t kMostBlocks = 4;

inline Floats Load(const float* from) { return _mm512_loadu_ps(from); }
inline void Store(float* to, Floats value) { _mm512_storeu_ps(to, value); }
inline Floats Sums(const int32_t* from) { return _mm512_cvtepi32_ps(_mm512_loadu_si512(from)); }
inline Floats Splat(float value) { return _mm512_set1_ps(value); }
inline Floats Add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats Subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats Multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats Limit(Floats v, Floats lo, Floats hi) { return _mm512_max_ps(_mm512_min_ps(v, hi), lo); }

inline Floats Divide(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats Max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats Min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats Magnitude(Floats v) { return _mm512_abs_ps(v); }
inline Floats WhereNegative(Floats v, Floats a, Floats b) {
  return _mm512_mask_mov_ps(b, _mm512_movepi32_mask(_mm512_castps_si512(v)), a);
}
inline Floats WhereGreater(Floats v, Floats limit) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(v, limit, _CMP_GT_OQ), v);
}
inline Floats Number(Floats v) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(v, v, _CMP_ORD_Q), v); }
inline Floats Entries(const float* table, Floats v) { return _mm512_i32gather_ps(_mm512_cvttps_epi32(v), table, 4); }

inline void StoreFirst(float* to, int64_t count, Floats value) {
  if (count >= kBlockUnits) {
    _mm512_storeu_ps(to, value);
  } else {
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), value);
  }
}

enum class Form {
  kLookUp,
  kLinear,
  // Linear in fewer operations, with lower limits of indices that packing with saturation keeps, and codes without
  // divisions.
  kFused,
};

template <Form kForm>
class Tables {
 public:
  explicit Tables(const HiddenCellArgs& args) {
    for (int g = 0; g < kGates; ++g) {
      min_[g] = _mm512_set1_ps(args.gate_min[g]);
      max_[g] = _mm512_set1_ps(args.gate_max[g]);
      table_[g] = args.gate_table[g];
    }
    if (kForm == Form::kLookUp) return;
    const LinearTables& linear = *args.linear;
    form_.Set(linear);
    for (int g = 0; g < kGates; ++g) {
      entries_[g].Set(linear.gate_scale[g], linear.gate_offset[g], linear.gate_start[g]);
    }
    zero_ = Words(linear.gate_zero);
    last_ = Words((kSegments << linear.gate_shift) - 1);
    shift_ = Words(linear.gate_shift);
    position_ = Words(16 - linear.gate_shift);
  }

  template <typename GateOf>
  RNNQC_FORCEINLINE void Look(Floats* v, int64_t count, const GateOf& gate_of) const {
    RNNQC_UNROLL(8)
    for (int64_t i = 0; i < count; i += 2) {
      const int64_t other = i + 1 < count ? i + 1 : i;
      const int64_t first_gate = gate_of(i);
      const int64_t second_gate = gate_of(other);
      const __m512i a = Index(v[i], first_gate);
      const __m512i b = Index(v[other], second_gate);
      if (kForm == Form::kLookUp) {
        v[i] = _mm512_i32gather_ps(a, table_[first_gate], 4);
        if (other != i) v[other] = _mm512_i32gather_ps(b, table_[second_gate], 4);
        continue;
      }
      // Indices up to 2^16 - 1 and the zero up to 2^15: codes fit into int16, modulo 2^16 as the subtraction goes.
      const __m512i t = form_(_mm512_sub_epi16(_mm512_packus_epi32(a, b), zero_), last_, shift_, position_);
      v[i] = entries_[first_gate].First(t);
      if (other != i) v[other] = entries_[second_gate].Second(t);
    }
  }

 private:
  static __m512i Words(int64_t value) { return _mm512_set1_epi16(static_cast<int16_t>(value)); }

  RNNQC_FORCEINLINE __m512i Index(Floats v, int64_t gate) const {
    const __m512 upper = _mm512_min_ps(v, max_[gate]);
    return _mm512_cvttps_epi32(kForm == Form::kFused ? upper : _mm512_max_ps(upper, min_[gate]));
  }

  LinearForm<kForm == Form::kFused> form_;
  LinearEntries<kForm == Form::kFused> entries_[kGates];
  __m512 min_[kGates], max_[kGates];
  __m512i zero_, last_, shift_, position_;
  const float* table_[kGates];
};

template <bool kDivides>
class ScaledCodes {
 public:
  explicit ScaledCodes(const HiddenCellArgs& args)
      : scale_(_mm512_set1_ps(args.h_scale)),
        upper_(_mm512_set1_ps(args.h_reciprocal.upper)),
        lower_(_mm512_set1_ps(args.h_reciprocal.lower)),
        min_(_mm512_set1_ps(static_cast<float>(-args.h_zero_point))),
        max_(_mm512_set1_ps(static_cast<float>(255 - args.h_zero_point))),
        zero_point_(_mm512_set1_epi32(args.h_zero_point)) {}

  RNNQC_FORCEINLINE void Store(const Floats* values, int64_t count, uint8_t* h) const {
    if (count == 4) {
      const __m512i zero_point = _mm512_packs_epi32(zero_point_, zero_point_);
      const __m512i low = _mm512_add_epi16(_mm512_packs_epi32(Code(values[0]), Code(values[1])), zero_point);
      const __m512i high = _mm512_add_epi16(_mm512_packs_epi32(Code(values[2]), Code(values[3])), zero_point);
      // Each 128 bits hold four codes of every block.
      const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
      _mm512_storeu_si512(h, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high)));
      return;
    }
    for (int64_t b = 0; b < count; ++b) {
      const __m512i code = _mm512_add_epi32(Code(values[b]), zero_point_);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(h + b * kBlockUnits), _mm512_cvtepi32_epi8(code));
    }
  }

 private:
  RNNQC_FORCEINLINE __m512i Code(Floats value) const {
    const __m512 quotient =
        kDivides ? _mm512_div_ps(value, scale_) : _mm512_fmadd_ps(value, upper_, _mm512_mul_ps(value, lower_));
    return _mm512_cvtps_epi32(Limit(quotient, min_, max_));
  }

  __m512 scale_, upper_, lower_, min_, max_;
  __m512i zero_point_;
};

using Codes = ScaledCodes<true>;

#define RNNQC_HIDDEN_UNROLL RNNQC_UNROLL(8)
#include "kernels/common/gru_rnn.inc"

template <typename Visit>
inline void InChunks(int64_t begin, int64_t end, const Visit& visit) {
  int64_t block = begin;
  for (; block + 4 <= end; block += 4) visit(block, FixedBlocks<4>());
  for (; block + 2 <= end; block += 2) visit(block, FixedBlocks<2>());
  if (block < end) visit(block, FixedBlocks<1>());
}

template <typename Step>
void Run(const HiddenCellArgs& args, int64_t gates, const Step& step) {
  if (args.linear == nullptr) return ForEachChunk<Tables<Form::kLookUp>>(args, step);
  bool fused = args.linear->fused && (args.options != nullptr || args.h_reciprocal.exact);
  for (int64_t g = 0; g < gates; ++g) fused = fused && args.gate_min[g] < 1.0f;
  if (fused) return ForEachChunk<Tables<Form::kFused>, ScaledCodes<false>>(args, step);
  ForEachChunk<Tables<Form::kLinear>>(args, step);
}

}  // namespace

RNNQC_HIDDEN_KERNELS(avx512vnni)

}  // namespace rnnqc
