// The step of an LSTM of tables: sixteen units of one gate to a register.

#include <immintrin.h>

#include <cstdint>
#include <new>

#include "kernels/common/compiler.h"
#include "kernels/common/fused_cell.h"
#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

#include "kernels/avx512vnni/linear.inc"

// The float arithmetic of a cell's tables.
enum class Form {
  kLookUp,
  kLinear,
  kFused,  // linear in fewer operations: see IsFusedCell
};

// The constants of a cell, in registers. kWhole: the cell state is a whole number.
template <Form kForm, bool kWhole>
class Cells {
 public:
  explicit Cells(const TableCellArgs& args) : cell_table_(args.cell_table), cell_table_size_(args.cell_table_size) {
    for (int g = 0; g < kGates; ++g) {
      gate_table_[g] = args.gate_table[g];
      min_[g] = _mm512_set1_ps(args.gate_min[g]);
      max_[g] = _mm512_set1_ps(args.gate_max[g]);
    }
    if (args.short_tail) {
      short_min_ = InShortTail(args.gate_min);
      short_max_ = InShortTail(args.gate_max);
    }
    const float half = static_cast<float>(args.cell_table_size / 2);
    code_min_ = _mm512_set1_ps(-half);
    code_max_ = _mm512_set1_ps(half - 1.0f);
    cell_max_ = _mm512_set1_ps(args.cell_max);
    cell_min_ = _mm512_set1_ps(-args.cell_max);
    cell_index_scale_ = _mm512_set1_ps(args.cell_index_scale);
    h_scale_ = _mm512_set1_ps(args.h_scale);
    h_upper_ = _mm512_set1_ps(args.h_reciprocal.upper);
    h_lower_ = _mm512_set1_ps(args.h_reciprocal.lower);
    h_zero_point_ = _mm512_set1_epi32(args.h_zero_point);
    h_min_ = _mm512_set1_ps(static_cast<float>(-args.h_zero_point));
    h_max_ = _mm512_set1_ps(static_cast<float>(255 - args.h_zero_point));
    if (kForm == Form::kLookUp) return;
    const LinearTables& linear = *args.linear;
    form_.Set(linear);
    for (int g = 0; g < kGates; ++g) {
      gate_entries_[g].Set(linear.gate_scale[g], linear.gate_offset[g], linear.gate_start[g]);
    }
    if (args.short_tail) {
      short_entries_.Set(InShortTail(linear.gate_scale), InShortTail(linear.gate_offset),
                         InShortTail(linear.gate_start));
    }
    cell_entries_.Set(linear.cell_scale, 0.0f, linear.cell_start);
    gate_zero_ = Words(linear.gate_zero);
    gate_last_ = Words((kSegments << linear.gate_shift) - 1);
    gate_shift_ = Words(linear.gate_shift);
    gate_position_ = Words(16 - linear.gate_shift);
    cell_last_ = Words((kSegments << linear.cell_shift) - 1);
    cell_shift_ = Words(linear.cell_shift);
    cell_position_ = Words(16 - linear.cell_shift);
  }

  void Row(const TableCellArgs& args, int64_t row) const {
    const bool tail = args.short_tail && args.block_end > args.units / kBlockUnits;
    const int64_t end = tail ? args.block_end - 1 : args.block_end;
    int64_t block = args.block_begin;
    for (; block + 4 <= end; block += 4) Blocks<4>(Place(args, row, block));
    for (; block + (tail ? 3 : 2) <= end; block += 2) Blocks<2>(Place(args, row, block));
    const int64_t left = end - block;
    if (!tail) {
      if (left > 0) Blocks<1>(Place(args, row, block));
    } else if (left == 2) {
      Blocks<3, true>(Place(args, row, block));
    } else if (left == 1) {
      Blocks<2, true>(Place(args, row, block));
    } else {
      Blocks<1, true>(Place(args, row, block));
    }
  }

 private:
  static constexpr __mmask16 kShortLanes = (1 << kShortUnits) - 1;

  // A value of each gate where a short tail has the gate's units.
  static __m512 InShortTail(const float* of_gates) {
    const __m512i order = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_permutexvar_ps(order, _mm512_castps128_ps512(_mm_loadu_ps(of_gates)));
  }

  static __m512i Words(int64_t value) { return _mm512_set1_epi16(static_cast<int16_t>(value)); }

  // Where the values of some blocks of a row begin.
  struct Place {
    Place(const TableCellArgs& args, int64_t row, int64_t block)
        : acc(args.acc + row * args.acc_stride + block * kBlockColumns),
          h_multiplier(args.h_multiplier + block * kBlockColumns),
          p(args.p + row * args.p_stride + block * kBlockColumns),
          c(args.c + row * args.c_stride + block * kBlockUnits),
          y(args.y[row] + block * kBlockUnits),
          h(args.h + row * args.h_stride + block * kBlockUnits),
          units_left(args.units - block * kBlockUnits) {}

    const int32_t* acc;
    const float* h_multiplier;
    const float* p;
    float* c;
    float* y;
    uint8_t* h;
    int64_t units_left;
  };

  // Indices of the sixteen entries of a gate, or of all of a short tail, from `column` of the place on.
  __m512i Index(const Place& at, int64_t column, __m512 lo, __m512 hi) const {
    const __m512 acc = _mm512_cvtepi32_ps(_mm512_loadu_si512(at.acc + column));
    const __m512 product = _mm512_mul_ps(acc, _mm512_loadu_ps(at.h_multiplier + column));
    const __m512 v = _mm512_add_ps(product, _mm512_loadu_ps(at.p + column));
    if (kForm == Form::kFused) return _mm512_cvttps_epi32(v);
    return _mm512_cvttps_epi32(_mm512_max_ps(_mm512_min_ps(v, hi), lo));
  }

  __m512i GateIndex(const Place& at, int64_t block, int gate) const {
    return Index(at, block * kBlockColumns + gate * kBlockUnits, min_[gate], max_[gate]);
  }

  __m512i ShortIndex(const Place& at, int64_t block) const {
    return Index(at, block * kBlockColumns, short_min_, short_max_);
  }

  __m512i GateCodes(__m512i first, __m512i second) const {
    if (kForm == Form::kFused) return _mm512_subs_epi16(_mm512_packs_epi32(first, second), gate_zero_);
    // Indices up to 2^16 - 1 and the zero up to 2^15: codes fit into int16, modulo 2^16 as the subtraction goes.
    return _mm512_sub_epi16(_mm512_packus_epi32(first, second), gate_zero_);
  }

  // The gates of some blocks.
  template <int kBlocks, bool kShort>
  void Gates(const Place& at, __m512 (*gates)[kGates]) const {
    constexpr int kPairs = 2 * kBlocks - (kShort ? 1 : 0);
    __m512i t[kPairs];
    RNNQC_UNROLL(8)
    for (int i = 0; i < kPairs; ++i) {
      const int block = i / 2;
      const int gate = i % 2 * 2;
      const bool is_short = kShort && i == kPairs - 1;
      const __m512i first = is_short ? ShortIndex(at, block) : GateIndex(at, block, gate);
      const __m512i second = is_short ? first : GateIndex(at, block, gate + 1);
      t[i] = GateCodes(first, second);
    }
    RNNQC_UNROLL(8)
    for (int i = 0; i < kPairs; ++i) t[i] = form_(t[i], gate_last_, gate_shift_, gate_position_);
    RNNQC_UNROLL(8)
    for (int i = 0; i < kPairs; ++i) {
      const int gate = i % 2 * 2;
      if (kShort && i == kPairs - 1) {
        SplitShort(short_entries_.First(t[i]), gates[i / 2]);
      } else {
        gates[i / 2][gate] = gate_entries_[gate].First(t[i]);
        gates[i / 2][gate + 1] = gate_entries_[gate + 1].Second(t[i]);
      }
    }
  }

  // The same, looked up.
  template <int kBlocks, bool kShort>
  void LookUpGates(const Place& at, __m512 (*gates)[kGates]) const {
    for (int b = 0; b < kBlocks; ++b) {
      const bool is_short = kShort && b == kBlocks - 1;
      __m512 all = _mm512_setzero_ps();
      RNNQC_UNROLL(4)
      for (int g = 0; g < kGates; ++g) {
        if (is_short) {
          const __mmask16 lanes = static_cast<__mmask16>(kShortLanes << g * kShortUnits);
          all = _mm512_mask_i32gather_ps(all, lanes, ShortIndex(at, b), gate_table_[g], 4);
        } else {
          gates[b][g] = _mm512_i32gather_ps(GateIndex(at, b, g), gate_table_[g], 4);
        }
      }
      if (is_short) SplitShort(all, gates[b]);
    }
  }

  // The gates of a short tail, with zeros for the units that it does not have.
  static void SplitShort(__m512 all, __m512* gates) {
    gates[0] = _mm512_maskz_mov_ps(kShortLanes, all);
    gates[1] = _mm512_maskz_shuffle_f32x4(kShortLanes, all, all, 1);
    gates[2] = _mm512_maskz_shuffle_f32x4(kShortLanes, all, all, 2);
    gates[3] = _mm512_maskz_shuffle_f32x4(kShortLanes, all, all, 3);
  }

  __m512i CellCode(__m512 c) const {
    const __m512 upper = _mm512_min_ps(kWhole ? c : _mm512_mul_ps(c, cell_index_scale_), code_max_);
    return _mm512_cvtps_epi32(kForm == Form::kFused ? upper : _mm512_max_ps(upper, code_min_));
  }

  __m512 CellEntry(__m512i code) const {
    const __m512i size = _mm512_set1_epi32(cell_table_size_);
    const __m512i index = _mm512_mask_add_epi32(code, _mm512_movepi32_mask(code), code, size);
    return _mm512_i32gather_ps(index, cell_table_, 4);
  }

  __m512 NextCell(const __m512* gates, const float* c) const {
    const __m512 kept = _mm512_mul_ps(gates[2], _mm512_loadu_ps(c));
    const __m512 sum = _mm512_add_ps(kept, _mm512_mul_ps(gates[0], gates[3]));
    const __m512 limited = kForm == Form::kFused ? sum : _mm512_max_ps(_mm512_min_ps(sum, cell_max_), cell_min_);
    return kWhole ? _mm512_roundscale_ps(limited, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC) : limited;
  }

  // Codes without the zero point. Those of kFused are right up to 255; larger ones saturate all the same.
  __m512i FusedCode(__m512 y) const {
    return _mm512_cvtps_epi32(_mm512_fmadd_ps(y, h_upper_, _mm512_mul_ps(y, h_lower_)));
  }

  __m512i DividedCode(__m512 y) const {
    return _mm512_cvtps_epi32(_mm512_max_ps(_mm512_min_ps(_mm512_div_ps(y, h_scale_), h_max_), h_min_));
  }

  void StoreHidden(uint8_t* to, __m512 y) const {
    const __m512i code = kForm == Form::kFused ? FusedCode(y) : DividedCode(y);
    const __m512i h = _mm512_max_epi32(_mm512_add_epi32(code, h_zero_point_), _mm512_setzero_si512());
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtusepi32_epi8(h));
  }

  // Four blocks of bounded codes: 64 bytes.
  void StoreHidden4(uint8_t* to, const __m512* y) const {
    __m512i code[4];
    RNNQC_UNROLL(4)
    for (int b = 0; b < 4; ++b) {
      code[b] = FusedCode(y[b]);
    }
    const __m512i zero_point = _mm512_packs_epi32(h_zero_point_, h_zero_point_);
    const __m512i low = _mm512_adds_epi16(_mm512_packs_epi32(code[0], code[1]), zero_point);
    const __m512i high = _mm512_adds_epi16(_mm512_packs_epi32(code[2], code[3]), zero_point);
    // Each 128 bits hold four codes of every block.
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high)));
  }

  // Stage by stage: a stage of all blocks fills the wait for the results of the stage before. kShort: the last one is a
  // short tail.
  template <int kBlocks, bool kShort = false>
  void Blocks(const Place& at) const {
    __m512 gates[kBlocks][kGates];
    __m512i code[kBlocks];
    __m512 y[kBlocks];
    if constexpr (kForm == Form::kLookUp) {
      LookUpGates<kBlocks, kShort>(at, gates);
    } else {
      Gates<kBlocks, kShort>(at, gates);
    }
    RNNQC_UNROLL(4)
    for (int b = 0; b < kBlocks; ++b) {
      const __m512 next = NextCell(gates[b], at.c + b * kBlockUnits);
      _mm512_storeu_ps(at.c + b * kBlockUnits, next);
      code[b] = CellCode(next);
    }
    RNNQC_UNROLL(4)
    for (int b = 0; b < kBlocks; ++b) {
      if (kForm == Form::kLookUp) {
        y[b] = _mm512_mul_ps(gates[b][1], CellEntry(code[b]));
      } else if (b % 2 == 0) {
        const int other = b + 1 < kBlocks ? b + 1 : b;
        const __m512i t = form_(_mm512_packs_epi32(code[b], code[other]), cell_last_, cell_shift_, cell_position_);
        y[b] = _mm512_mul_ps(gates[b][1], cell_entries_.First(t));
        if (other != b) y[other] = _mm512_mul_ps(gates[other][1], cell_entries_.Second(t));
      }
    }
    RNNQC_UNROLL(4)
    for (int b = 0; b < kBlocks - 1; ++b) _mm512_storeu_ps(at.y + b * kBlockUnits, y[b]);
    const int64_t left = at.units_left - (kBlocks - 1) * kBlockUnits;
    const __mmask16 stored = static_cast<__mmask16>(left >= kBlockUnits ? 0xffff : (1 << left) - 1);
    _mm512_mask_storeu_ps(at.y + (kBlocks - 1) * kBlockUnits, stored, y[kBlocks - 1]);
    if (kForm == Form::kFused && kBlocks == 4) {
      StoreHidden4(at.h, y);
    } else {
      RNNQC_UNROLL(4)
      for (int b = 0; b < kBlocks; ++b) StoreHidden(at.h + b * kBlockUnits, y[b]);
    }
  }

  LinearForm<kForm == Form::kFused> form_;
  LinearEntries<kForm == Form::kFused> gate_entries_[kGates], short_entries_, cell_entries_;
  __m512 min_[kGates], max_[kGates], short_min_, short_max_;
  __m512 code_min_, code_max_, cell_min_, cell_max_, cell_index_scale_;
  __m512 h_scale_, h_upper_, h_lower_, h_min_, h_max_;
  __m512i h_zero_point_, gate_zero_, gate_last_, gate_shift_, gate_position_, cell_last_, cell_shift_, cell_position_;
  const float* gate_table_[kGates];
  const float* cell_table_;
  int32_t cell_table_size_;
};

// Cells and what runs them, in the memory of constants.
struct Prepared {
  void (*run)(const TableCellArgs& args);
  alignas(kAlignment) unsigned char cells[kCellConstantBytes - kAlignment];
};

template <Form kForm, bool kWhole>
void AllRows(const TableCellArgs& args) {
  const auto& prepared = *static_cast<const Prepared*>(args.constants);
  const auto& cells = *reinterpret_cast<const Cells<kForm, kWhole>*>(prepared.cells);
  for (int64_t row = 0; row < args.rows; ++row) cells.Row(args, row);
}

template <Form kForm, bool kWhole>
void Prepare(const TableCellArgs& args, Prepared* prepared) {
  static_assert(sizeof(Cells<kForm, kWhole>) <= sizeof(prepared->cells), "kCellConstantBytes is too small");
  prepared->run = AllRows<kForm, kWhole>;
  new (prepared->cells) Cells<kForm, kWhole>(args);
}

template <Form kForm>
void Prepare(const TableCellArgs& args, Prepared* prepared) {
  args.cell_index_scale == 0.0f ? Prepare<kForm, true>(args, prepared) : Prepare<kForm, false>(args, prepared);
}

}  // namespace

void s32_prepare_table_cell__avx512vnni(const TableCellArgs& args, void* constants) {
  Prepared* const prepared = new (constants) Prepared;
  if (args.linear == nullptr) {
    Prepare<Form::kLookUp>(args, prepared);
  } else if (IsFusedCell(args)) {
    Prepare<Form::kFused>(args, prepared);
  } else {
    Prepare<Form::kLinear>(args, prepared);
  }
}

void s32_table_cell_32__avx512vnni(const TableCellArgs& args) {
  static_cast<const Prepared*>(args.constants)->run(args);
}

}  // namespace rnnqc
