// The step of an LSTM of tables: eight units of one gate to a register.

#include <immintrin.h>

#include <cstdint>

#include "kernels/common/compiler.h"
#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

#include "kernels/avx2/linear.inc"

inline __m256 Floats8(const int32_t* sums) {
  return _mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums)));
}

const LinearTables kNoTables{};

// kWhole: the cell state is a whole number.
template <bool kPeepholes, bool kLinear, bool kWhole>
class Cells {
 public:
  explicit Cells(const TableCellArgs& args)
      : linear_(kLinear ? *args.linear : kNoTables),
        gate_form_(linear_, linear_.gate_shift),
        cell_form_(linear_, linear_.cell_shift),
        grid_(args.h_scale, args.h_zero_point),
        cell_table_(args.cell_table),
        cell_table_size_(_mm256_set1_epi32(args.cell_table_size)),
        cell_min_(_mm256_set1_ps(-args.cell_max)),
        cell_max_(_mm256_set1_ps(args.cell_max)),
        cell_index_scale_(_mm256_set1_ps(args.cell_index_scale)),
        code_min_(_mm256_set1_ps(static_cast<float>(-(args.cell_table_size / 2)))),
        code_max_(_mm256_set1_ps(static_cast<float>(args.cell_table_size / 2 - 1))),
        // Indices up to 2^16 - 1 and the zero up to 2^15: codes fit into int16, modulo 2^16 as the subtraction goes.
        gate_zero_(_mm256_set1_epi16(static_cast<int16_t>(linear_.gate_zero))),
        cell_scale_(_mm256_set1_ps(linear_.cell_scale * 0x1p-16f)) {
    for (int g = 0; g < kGates; ++g) {
      gate_table_[g] = args.gate_table[g];
      gate_min_[g] = _mm256_set1_ps(args.gate_min[g]);
      gate_max_[g] = _mm256_set1_ps(args.gate_max[g]);
      gate_scale_[g] = _mm256_set1_ps(linear_.gate_scale[g] * 0x1p-16f);
      gate_offset_[g] = _mm256_set1_ps(linear_.gate_offset[g]);
    }
  }

  void Row(const TableCellArgs& args, int64_t row) const {
    for (int64_t first = args.block_begin; first < args.block_end; first += kChunk) {
      const int64_t column = first * kBlockColumns;
      const int64_t unit = first * kBlockUnits;
      const Place at{Least(kChunk, args.block_end - first),
                     args.acc + row * args.acc_stride + column,
                     args.p + row * args.p_stride + column,
                     args.h_multiplier + column,
                     kPeepholes ? args.peephole + column : nullptr,
                     args.c + row * args.c_stride + unit,
                     args.units - unit,
                     args.y[row] + unit,
                     args.h + row * args.h_stride + unit};
      Chunk(at);
    }
  }

 private:
  // A chunk in every array.
  struct Place {
    int64_t blocks;
    const int32_t* acc;
    const float* p;
    const float* h_multiplier;
    const float* peephole;
    float* c;
    int64_t units;  // that are left
    float* y;
    uint8_t* h;
  };

  void Chunk(const Place& at) const {
    Floats o[kChunk];
    if (kPeepholes) {
      SeeingStates(at);
      SeeingOutputGates(at, o);
    } else {
      States(at, o);
    }
    Units forms[kChunk];
    if (kLinear) {
      for (int64_t b = 0; b < at.blocks; b += 2) {
        const Units first = CellCodes(at, b);
        const Units second = CellCodes(at, Least(b + 1, at.blocks - 1));
        forms[b / 2] = {_mm256_packs_epi32(first.low, first.high), _mm256_packs_epi32(second.low, second.high)};
      }
      cell_form_(forms, (at.blocks + 1) / 2);
    }
    for (int64_t b = 0; b < at.blocks; ++b) {
      if (kLinear) {
        const __m256i t = OfPair(forms, b);
        Output(at, b, o[b], {_mm256_mul_ps(Low(t), cell_scale_), _mm256_mul_ps(High(t), cell_scale_)});
      } else {
        const Units code = CellCodes(at, b);
        Output(at, b, o[b], {CellEntry(code.low), CellEntry(code.high)});
      }
    }
  }

  // The states after the step, and gate o.
  RNNQC_FORCEINLINE void States(const Place& at, Floats* o) const {
    Units forms[2 * kChunk];
    if (kLinear) {
      for (int64_t i = 0; i < 2 * at.blocks; ++i) {
        const int gate = i % 2 == 0 ? 0 : 2;
        forms[i] = GateCodes(GateIndices<false>(at, i / 2, gate), GateIndices<false>(at, i / 2, gate + 1));
      }
      gate_form_(forms, 2 * at.blocks);
    }
    for (int64_t b = 0; b < at.blocks; ++b) {
      Floats gates[kGates];
      RNNQC_UNROLL(2)
      for (int g = 0; g < 4; g += 2) {
        gates[g] = kLinear ? GateValues(forms[2 * b + g / 2].low, g) : GateEntries<false>(at, b, g);
        gates[g + 1] = kLinear ? GateValues(forms[2 * b + g / 2].high, g + 1) : GateEntries<false>(at, b, g + 1);
      }
      NextCells(at, b, gates[0], gates[2], gates[3]);
      o[b] = gates[1];
    }
  }

  // The states after the step, of gates that see those before it.
  RNNQC_FORCEINLINE void SeeingStates(const Place& at) const {
    Units forms[2 * kChunk];
    Units* const of_d = forms + at.blocks;
    if (kLinear) {
      for (int64_t b = 0; b < at.blocks; ++b)
        forms[b] = GateCodes(GateIndices<true>(at, b, 0), GateIndices<true>(at, b, 2));
      PairCodes<false>(at, 3, of_d);
      gate_form_(forms, at.blocks + (at.blocks + 1) / 2);
    }
    for (int64_t b = 0; b < at.blocks; ++b) {
      const Floats i = kLinear ? GateValues(forms[b].low, 0) : GateEntries<true>(at, b, 0);
      const Floats f = kLinear ? GateValues(forms[b].high, 2) : GateEntries<true>(at, b, 2);
      const Floats d = kLinear ? GateValues(OfPair(of_d, b), 3) : GateEntries<false>(at, b, 3);
      NextCells(at, b, i, f, d);
    }
  }

  // Gate o, which sees the states after the step.
  RNNQC_FORCEINLINE void SeeingOutputGates(const Place& at, Floats* o) const {
    Units forms[kChunk];
    if (kLinear) {
      PairCodes<true>(at, 1, forms);
      gate_form_(forms, (at.blocks + 1) / 2);
    }
    for (int64_t b = 0; b < at.blocks; ++b) {
      o[b] = kLinear ? GateValues(OfPair(forms, b), 1) : GateEntries<true>(at, b, 1);
    }
  }

  // kSees: the gate has a peephole on at.c.
  template <bool kSees>
  RNNQC_FORCEINLINE __m256i GateIndex(const Place& at, int64_t column, const float* c, int gate) const {
    const __m256 acc = Floats8(at.acc + column);
    const __m256 product = _mm256_mul_ps(acc, _mm256_loadu_ps(at.h_multiplier + column));
    __m256 v = _mm256_add_ps(product, _mm256_loadu_ps(at.p + column));
    if (kSees) v = _mm256_add_ps(v, _mm256_mul_ps(_mm256_loadu_ps(at.peephole + column), _mm256_loadu_ps(c)));
    return _mm256_cvttps_epi32(Limit(v, gate_min_[gate], gate_max_[gate]));
  }

  template <bool kSees>
  RNNQC_FORCEINLINE Units GateIndices(const Place& at, int64_t block, int gate) const {
    const int64_t column = block * kBlockColumns + gate * kBlockUnits;
    const float* c = at.c + block * kBlockUnits;
    return {GateIndex<kSees>(at, column, c, gate), GateIndex<kSees>(at, column + 8, c + 8, gate)};
  }

  // Codes of twice sixteen units.
  RNNQC_FORCEINLINE Units GateCodes(const Units& a, const Units& b) const {
    return {_mm256_sub_epi16(_mm256_packus_epi32(a.low, a.high), gate_zero_),
            _mm256_sub_epi16(_mm256_packus_epi32(b.low, b.high), gate_zero_)};
  }

  // Codes of one gate, two blocks to an element; the last block may stand twice in its own.
  template <bool kSees>
  RNNQC_FORCEINLINE void PairCodes(const Place& at, int gate, Units* codes) const {
    for (int64_t b = 0; b < at.blocks; b += 2) {
      const Units second = GateIndices<kSees>(at, Least(b + 1, at.blocks - 1), gate);
      codes[b / 2] = GateCodes(GateIndices<kSees>(at, b, gate), second);
    }
  }

  static __m256i OfPair(const Units* pairs, int64_t block) {
    return block % 2 == 0 ? pairs[block / 2].low : pairs[block / 2].high;
  }

  RNNQC_FORCEINLINE Floats GateValues(__m256i t, int gate) const {
    return {_mm256_add_ps(_mm256_mul_ps(Low(t), gate_scale_[gate]), gate_offset_[gate]),
            _mm256_add_ps(_mm256_mul_ps(High(t), gate_scale_[gate]), gate_offset_[gate])};
  }

  template <bool kSees>
  Floats GateEntries(const Place& at, int64_t block, int gate) const {
    const Units index = GateIndices<kSees>(at, block, gate);
    return {_mm256_i32gather_ps(gate_table_[gate], index.low, 4),
            _mm256_i32gather_ps(gate_table_[gate], index.high, 4)};
  }

  RNNQC_FORCEINLINE void NextCells(const Place& at, int64_t block, const Floats& i, const Floats& f,
                                   const Floats& d) const {
    float* c = at.c + block * kBlockUnits;
    NextCell(c, i.low, f.low, d.low);
    NextCell(c + 8, i.high, f.high, d.high);
  }

  RNNQC_FORCEINLINE void NextCell(float* c, __m256 i, __m256 f, __m256 d) const {
    const __m256 sum = _mm256_add_ps(_mm256_mul_ps(f, _mm256_loadu_ps(c)), _mm256_mul_ps(i, d));
    const __m256 limited = Limit(sum, cell_min_, cell_max_);
    const __m256 whole = _mm256_round_ps(limited, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_ps(c, kWhole ? whole : limited);
  }

  RNNQC_FORCEINLINE __m256i CellCode(const float* c) const {
    const __m256 next = _mm256_loadu_ps(c);
    const __m256 steps = kWhole ? next : _mm256_mul_ps(next, cell_index_scale_);
    return _mm256_cvtps_epi32(Limit(steps, code_min_, code_max_));
  }

  RNNQC_FORCEINLINE Units CellCodes(const Place& at, int64_t block) const {
    const float* c = at.c + block * kBlockUnits;
    return {CellCode(c), CellCode(c + 8)};
  }

  __m256 CellEntry(__m256i code) const {
    const __m256i index = _mm256_add_epi32(code, _mm256_and_si256(_mm256_srai_epi32(code, 31), cell_table_size_));
    return _mm256_i32gather_ps(cell_table_, index, 4);
  }

  RNNQC_FORCEINLINE void Output(const Place& at, int64_t block, const Floats& o, const Floats& activated) const {
    const __m256 y0 = _mm256_mul_ps(o.low, activated.low);
    const __m256 y1 = _mm256_mul_ps(o.high, activated.high);
    float* y = at.y + block * kBlockUnits;
    const int64_t left = at.units - block * kBlockUnits;
    if (left >= kBlockUnits) {
      _mm256_storeu_ps(y, y0);
      _mm256_storeu_ps(y + 8, y1);
    } else {
      _mm256_maskstore_ps(y, FirstLanes(left), y0);
      if (left > 8) _mm256_maskstore_ps(y + 8, FirstLanes(left - 8), y1);
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at.h + block * kBlockUnits), grid_(y0, y1));
  }

  const LinearTables& linear_;
  LinearForm gate_form_;
  LinearForm cell_form_;
  Grid grid_;
  const float* gate_table_[kGates];
  const float* cell_table_;
  __m256i cell_table_size_;
  __m256 gate_min_[kGates], gate_max_[kGates], gate_scale_[kGates], gate_offset_[kGates];
  __m256 cell_min_, cell_max_, cell_index_scale_, code_min_, code_max_;
  __m256i gate_zero_;
  __m256 cell_scale_;
};

template <bool kPeepholes, bool kLinear, bool kWhole>
void RunCells(const TableCellArgs& args) {
  const Cells<kPeepholes, kLinear, kWhole> cells(args);
  for (int64_t row = 0; row < args.rows; ++row) cells.Row(args, row);
}

template <bool kPeepholes>
void RunCellsOfKind(const TableCellArgs& args) {
  const bool whole = args.cell_index_scale == 0.0f;
  if (args.linear != nullptr) {
    whole ? RunCells<kPeepholes, true, true>(args) : RunCells<kPeepholes, true, false>(args);
  } else {
    whole ? RunCells<kPeepholes, false, true>(args) : RunCells<kPeepholes, false, false>(args);
  }
}

}  // namespace

void s32_table_cell_32__avx2(const TableCellArgs& args) { RunCellsOfKind<false>(args); }

void s32_peephole_cell_32__avx2(const TableCellArgs& args) { RunCellsOfKind<true>(args); }

}  // namespace rnnqc
