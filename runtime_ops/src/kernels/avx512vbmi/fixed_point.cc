// AVX-512 VBMI: 64 codes to a register, looked up in registers. Products are those of AVX512-VNNI.

#include <immintrin.h>

#include <cstdint>

#include "kernels/common/compiler.h"
#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

// Units of a group: codes of up to four blocks in one register. Packing leaves four units of every block in each 128
// bits; in memory each 128 bits are one block.
constexpr int kGroupBlocks = 4;

inline __m512i OtherOrder(__m512i bytes) {
  return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), bytes);
}

inline __m512i Pack(const __m512i* codes) {
  return _mm512_packs_epi16(_mm512_packs_epi32(codes[0], codes[1]), _mm512_packs_epi32(codes[2], codes[3]));
}

// The elements of block b of 32 int16 numbers, which hold two blocks, times 2^16.
inline __m512i First(__m512i words) { return _mm512_unpacklo_epi16(_mm512_setzero_si512(), words); }
inline __m512i Second(__m512i words) { return _mm512_unpackhi_epi16(_mm512_setzero_si512(), words); }

inline __m512i LookUp(__m512i index, const uint8_t* table) {
  const __m512i* t = reinterpret_cast<const __m512i*>(table);
  const __m512i positive = _mm512_permutex2var_epi8(_mm512_load_si512(t), index, _mm512_load_si512(t + 1));
  const __m512i negative = _mm512_permutex2var_epi8(_mm512_load_si512(t + 2), index, _mm512_load_si512(t + 3));
  return _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), positive, negative);
}

struct Range {
  explicit Range(const ByteRange& range) : low(_mm512_set1_epi8(range.low)), high(_mm512_set1_epi8(range.high)) {}
  __m512i operator()(__m512i bytes) const { return _mm512_max_epi8(_mm512_min_epi8(bytes, high), low); }

  __m512i low, high;
};

class Cells {
 public:
  explicit Cells(const GridBytesArgs& args)
      : args_(args),
        form_(*args.form),
        gate_{Range(form_.gate[0]), Range(form_.gate[1]), Range(form_.gate[2]), Range(form_.gate[3])},
        kept_(form_.kept),
        added_(form_.added),
        cell_(form_.cell),
        hidden_(form_.hidden),
        kept_ratio_(_mm512_set1_ps(form_.kept_ratio * 0x1p-16f)),
        added_ratio_(_mm512_set1_ps(form_.added_ratio * 0x1p-16f)),
        hidden_ratio_(_mm512_set1_ps(form_.hidden_ratio * 0x1p-16f)),
        h_scale_(_mm512_set1_ps(form_.h_scale * 0x1p-24f)),
        h_zero_point_(_mm512_set1_epi8(static_cast<char>(form_.h_zero_point))) {
    for (int g = 0; g < kGates; ++g) {
      inverse_[g] = _mm512_set1_ps(form_.inverse[g]);
      rest_[g] = _mm512_set1_ps(form_.rest[g]);
    }
  }

  void Row(int64_t row) const {
    int64_t block = args_.block_begin;
    for (; block + 4 <= args_.block_end; block += 4) Blocks<4>(row, block);
    switch (args_.block_end - block) {
      case 3:
        return Blocks<3>(row, block);
      case 2:
        return Blocks<2>(row, block);
      case 1:
        return Blocks<1>(row, block);
      default:
        return;
    }
  }

 private:
  template <int kBlocks>
  __m512i GateIndex(int64_t row, int64_t block, int gate) const {
    __m512i codes[kGroupBlocks];
    RNNQC_UNROLL(4)
    for (int b = 0; b < kGroupBlocks; ++b) {
      if (b >= kBlocks) {
        codes[b] = codes[0];
        continue;
      }
      const int64_t column = (block + b) * kBlockColumns + gate * kBlockUnits;
      const __m512 acc = _mm512_cvtepi32_ps(_mm512_loadu_si512(args_.acc + row * args_.acc_stride + column));
      const __m512 product = _mm512_mul_ps(acc, _mm512_loadu_ps(args_.h_multiplier + column));
      const __m512 sum = _mm512_add_ps(product, _mm512_loadu_ps(args_.p + row * args_.p_stride + column));
      const __m512 v = _mm512_add_ps(sum, _mm512_loadu_ps(args_.bias + column));
      codes[b] = _mm512_cvtps_epi32(_mm512_fmadd_ps(v, inverse_[gate], _mm512_mul_ps(v, rest_[gate])));
    }
    return gate_[gate](Pack(codes));
  }

  // Products of uint8 and int8 codes times a ratio (2^16 of it), rounded.
  static __m512i Products(__m512i u8, __m512i s8, __m512 ratio) {
    const __m512i zero = _mm512_setzero_si512();
    const __m512i low = _mm512_maddubs_epi16(_mm512_unpacklo_epi8(u8, zero), _mm512_unpacklo_epi8(s8, zero));
    const __m512i high = _mm512_maddubs_epi16(_mm512_unpackhi_epi8(u8, zero), _mm512_unpackhi_epi8(s8, zero));
    const __m512i products[kGroupBlocks] = {First(low), Second(low), First(high), Second(high)};
    __m512i codes[kGroupBlocks];
    RNNQC_UNROLL(4)
    for (int b = 0; b < kGroupBlocks; ++b) {
      codes[b] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(products[b]), ratio));
    }
    return Pack(codes);
  }

  template <int kBlocks>
  void Blocks(int64_t row, int64_t block) const {
    constexpr __mmask16 lanes = static_cast<__mmask16>((1u << (4 * kBlocks)) - 1);
    int8_t* c = args_.c + row * args_.c_stride + block * kBlockUnits;
    uint8_t* h = args_.h + row * args_.h_stride + block * kBlockUnits;
    const __m512i before = OtherOrder(_mm512_maskz_loadu_epi32(lanes, c));
    const __m512i input = GateIndex<kBlocks>(row, block, 0);
    const __m512i forget = form_.input_forget ? input : GateIndex<kBlocks>(row, block, 2);
    const __m512i i = LookUp(input, form_.gate_codes[0]);
    const __m512i f = LookUp(forget, form_.gate_codes[2]);
    const __m512i d = LookUp(GateIndex<kBlocks>(row, block, 3), form_.gate_codes[3]);
    const __m512i o = LookUp(GateIndex<kBlocks>(row, block, 1), form_.gate_codes[1]);
    const __m512i kept = kept_(Products(f, before, kept_ratio_));
    const __m512i added = added_(Products(i, d, added_ratio_));
    const __m512i after = cell_(_mm512_adds_epi8(kept, added));
    _mm512_mask_storeu_epi32(c, lanes, OtherOrder(after));
    const __m512i m = hidden_(Products(o, LookUp(after, form_.cell_codes), hidden_ratio_));
    _mm512_mask_storeu_epi32(h, lanes, OtherOrder(_mm512_add_epi8(m, h_zero_point_)));
    StoreOutputs<kBlocks>(row, block, m);
  }

  template <int kBlocks>
  void StoreOutputs(int64_t row, int64_t block, __m512i m) const {
    const __m512i zero = _mm512_setzero_si512();
    const __m512i low = _mm512_unpacklo_epi8(zero, m);
    const __m512i high = _mm512_unpackhi_epi8(zero, m);
    const __m512i multiples[kGroupBlocks] = {First(low), Second(low), First(high), Second(high)};
    RNNQC_UNROLL(4)
    for (int b = 0; b < kBlocks; ++b) {
      const __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(multiples[b]), h_scale_);
      const int64_t unit = (block + b) * kBlockUnits;
      const int64_t left = args_.units - unit;
      if (left >= kBlockUnits) {
        _mm512_storeu_ps(args_.y[row] + unit, y);
      } else {
        _mm512_mask_storeu_ps(args_.y[row] + unit, static_cast<__mmask16>((1u << left) - 1), y);
      }
    }
  }

  const GridBytesArgs args_;
  const GridBytes& form_;
  __m512 inverse_[kGates], rest_[kGates];
  Range gate_[kGates];
  Range kept_, added_, cell_, hidden_;
  __m512 kept_ratio_, added_ratio_, hidden_ratio_, h_scale_;
  __m512i h_zero_point_;
};

}  // namespace

void s32_grid_bytes_64__avx512vbmi(const GridBytesArgs& args) {
  const Cells cells(args);
  for (int64_t row = 0; row < args.rows; ++row) cells.Row(row);
}

}  // namespace rnnqc
