// The step of an LSTM of tables: four units of one gate to a register.

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

#include "kernels/neon/linear.inc"

// Something of the sixteen units of a block.
using Floats = float32x4_t[4];
using Indices = int32x4_t[4];

const LinearTables kNoTables{};

// kWhole: the cell state is a whole number.
template <bool kPeepholes, bool kLinear, bool kWhole>
class Cells {
 public:
  explicit Cells(const TableCellArgs& args)
      : args_(args),
        linear_(kLinear ? *args.linear : kNoTables),
        planes_(linear_),
        gate_form_(planes_, linear_.gate_shift),
        cell_form_(planes_, linear_.cell_shift),
        grid_(args.h_scale, args.h_zero_point) {}

  void Block(int64_t row, int64_t block) const {
    const int64_t unit = block * kBlockUnits;
    float* c = args_.c + row * args_.c_stride + unit;
    Floats gates[kGates];
    Gate<kPeepholes>(row, block, 0, c, gates[0]);
    Gate<kPeepholes>(row, block, 2, c, gates[2]);
    Gate<false>(row, block, 3, c, gates[3]);
    const float half = static_cast<float>(args_.cell_table_size / 2);
    Indices code;
    for (int i = 0; i < 4; ++i) {
      const float32x4_t kept = vmulq_f32(gates[2][i], vld1q_f32(c + i * 4));
      const float32x4_t sum = vaddq_f32(kept, vmulq_f32(gates[0][i], gates[3][i]));
      const float32x4_t limited = Limit(sum, -args_.cell_max, args_.cell_max);
      const float32x4_t next = kWhole ? vrndnq_f32(limited) : limited;
      vst1q_f32(c + i * 4, next);
      const float32x4_t steps = kWhole ? next : vmulq_n_f32(next, args_.cell_index_scale);
      code[i] = vcvtnq_s32_f32(Limit(steps, -half, half - 1.0f));
    }
    Gate<kPeepholes>(row, block, 1, c, gates[1]);
    Floats y;
    Activated(code, y);
    for (int i = 0; i < 4; ++i) y[i] = vmulq_f32(gates[1][i], y[i]);
    Store(args_.y[row] + unit, args_.units - unit, y);
    vst1q_u8(args_.h + row * args_.h_stride + unit, grid_(y));
  }

 private:
  // kSees: the gate has a peephole on c.
  template <bool kSees>
  void Gate(int64_t row, int64_t block, int gate, const float* c, Floats& values) const {
    const int64_t column = block * kBlockColumns + gate * kBlockUnits;
    const int32_t* acc = args_.acc + row * args_.acc_stride + column;
    const float* p = args_.p + row * args_.p_stride + column;
    Indices index;
    for (int i = 0; i < 4; ++i) {
      const float32x4_t multiplier = vld1q_f32(args_.h_multiplier + column + i * 4);
      const float32x4_t product = vmulq_f32(vcvtq_f32_s32(vld1q_s32(acc + i * 4)), multiplier);
      float32x4_t v = vaddq_f32(product, vld1q_f32(p + i * 4));
      if (kSees) v = vaddq_f32(v, vmulq_f32(vld1q_f32(args_.peephole + column + i * 4), vld1q_f32(c + i * 4)));
      index[i] = vcvtq_s32_f32(Limit(v, args_.gate_min[gate], args_.gate_max[gate]));
    }
    if (kLinear) {
      // Indices up to 2^16 - 1 and the zero up to 2^15: codes fit into int16.
      int16x8_t low = ToCodes(index[0], index[1], linear_.gate_zero);
      int16x8_t high = ToCodes(index[2], index[3], linear_.gate_zero);
      gate_form_(&low, &high);
      Scaled(low, high, linear_.gate_scale[gate], values);
      for (int i = 0; i < 4; ++i) values[i] = vaddq_f32(values[i], vdupq_n_f32(linear_.gate_offset[gate]));
    } else {
      for (int i = 0; i < 4; ++i) values[i] = Entries(args_.gate_table[gate], index[i]);
    }
  }

  // The cell table's entries of `code`.
  void Activated(const Indices& code, Floats& values) const {
    if (kLinear) {
      int16x8_t low = ToCodes(code[0], code[1], 0);
      int16x8_t high = ToCodes(code[2], code[3], 0);
      cell_form_(&low, &high);
      Scaled(low, high, linear_.cell_scale, values);
    } else {
      const int32x4_t size = vdupq_n_s32(args_.cell_table_size);
      for (int i = 0; i < 4; ++i) {
        const int32x4_t index = vaddq_s32(code[i], vandq_s32(vshrq_n_s32(code[i], 31), size));
        values[i] = Entries(args_.cell_table, index);
      }
    }
  }

  static void Scaled(int16x8_t low, int16x8_t high, float scale, Floats& values) {
    values[0] = vmulq_n_f32(LowFloats(low), scale);
    values[1] = vmulq_n_f32(HighFloats(low), scale);
    values[2] = vmulq_n_f32(LowFloats(high), scale);
    values[3] = vmulq_n_f32(HighFloats(high), scale);
  }

  static void Store(float* y, int64_t left, const Floats& values) {
    float all[kBlockUnits];
    float* to = left >= kBlockUnits ? y : all;
    for (int i = 0; i < 4; ++i) vst1q_f32(to + i * 4, values[i]);
    if (left < kBlockUnits) std::memcpy(y, all, static_cast<size_t>(left) * sizeof(float));
  }

  const TableCellArgs& args_;
  const LinearTables& linear_;
  Planes planes_;
  LinearForm gate_form_;
  LinearForm cell_form_;
  Grid grid_;
};

template <bool kPeepholes, bool kLinear, bool kWhole>
void RunCells(const TableCellArgs& args) {
  const Cells<kPeepholes, kLinear, kWhole> cells(args);
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t block = args.block_begin; block < args.block_end; ++block) cells.Block(row, block);
  }
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

void s32_table_cell_16__neon(const TableCellArgs& args) { RunCellsOfKind<false>(args); }

void s32_peephole_cell_16__neon(const TableCellArgs& args) { RunCellsOfKind<true>(args); }

}  // namespace rnnqc
