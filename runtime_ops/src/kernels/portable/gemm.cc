// Plain C++ that compilers vectorise for the baseline of the architecture.

#include <cstdint>
#include <cstring>

#include "kernels/kernel_table.h"
#include "kernels/common/rounding.h"

namespace rnnqc {
namespace {

inline int32_t CodeOffset(float x, float scale, float lo, float hi) {
  return static_cast<int32_t>(RoundEven(Limit(x / scale, lo, hi)));
}

// Four columns of int16 weights, k_padded apart; k_padded is a multiple of 16.
inline void Dot4(const uint8_t* __restrict a, const int16_t* __restrict w, int64_t k_padded, int32_t* __restrict sums) {
  const int16_t* w0 = w;
  const int16_t* w1 = w + k_padded;
  const int16_t* w2 = w + 2 * k_padded;
  const int16_t* w3 = w + 3 * k_padded;
  int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
  for (int64_t k = 0; k < k_padded; ++k) {
    const int16_t value = a[k];
    s0 += value * w0[k];
    s1 += value * w1[k];
    s2 += value * w2[k];
    s3 += value * w3[k];
  }
  sums[0] = s0;
  sums[1] = s1;
  sums[2] = s2;
  sums[3] = s3;
}

struct TableCellRow {
  const int32_t* acc;
  const float* p;
  const float* h_multiplier;
  float* c;
  float* y;
  uint8_t* h;
};

inline void TableCellBlock(const TableCellArgs& args, const TableCellRow& row) {
  float gates[kGates][kBlockUnits];
  for (int64_t g = 0; g < kGates; ++g) {
    const float lo = args.gate_min[g];
    const float hi = args.gate_max[g];
    int32_t index[kBlockUnits];
    for (int64_t u = 0; u < kBlockUnits; ++u) {
      const int64_t j = g * kBlockUnits + u;
      const float product = static_cast<float>(row.acc[j]) * row.h_multiplier[j];
      index[u] = static_cast<int32_t>(Limit(product + row.p[j], lo, hi));
    }
    const float* table = args.gate_table[g];
    for (int64_t u = 0; u < kBlockUnits; ++u) gates[g][u] = table[index[u]];
  }
  int32_t index[kBlockUnits];
  const float half = static_cast<float>(args.cell_table_size / 2);
  for (int64_t u = 0; u < kBlockUnits; ++u) {
    const float kept = gates[2][u] * row.c[u];
    const float added = gates[0][u] * gates[3][u];
    const float c = RoundEven(Limit(kept + added, -args.cell_max, args.cell_max));
    row.c[u] = c;
    const int32_t code = static_cast<int32_t>(Limit(c, -half, half - 1.0f));
    index[u] = code + ((code >> 31) & args.cell_table_size);
  }
  const float lo = static_cast<float>(-args.h_zero_point);
  const float hi = static_cast<float>(255 - args.h_zero_point);
  for (int64_t u = 0; u < kBlockUnits; ++u) row.y[u] = gates[1][u] * args.cell_table[index[u]];
  for (int64_t u = 0; u < kBlockUnits; ++u) {
    row.h[u] = static_cast<uint8_t>(CodeOffset(row.y[u], args.h_scale, lo, hi) + args.h_zero_point);
  }
}

}  // namespace

float f32_max_abs__portable(const float* x, int64_t n) {
  // Magnitudes compare like their bit patterns; those above infinity are NaN.
  int32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    int32_t bits;
    std::memcpy(&bits, x + i, sizeof(bits));
    bits &= 0x7fffffff;
    bits = bits > 0x7f800000 ? 0 : bits;
    largest = bits > largest ? bits : largest;
  }
  float result;
  std::memcpy(&result, &largest, sizeof(result));
  return result;
}

MinMax f32_min_max__portable(const float* x, int64_t n) {
  // Positive numbers compare like their bit patterns, negative ones have a negative pattern; NaN as above.
  int32_t below = 0;
  int32_t above = 0;
  for (int64_t i = 0; i < n; ++i) {
    int32_t bits;
    std::memcpy(&bits, x + i, sizeof(bits));
    int32_t magnitude = bits & 0x7fffffff;
    magnitude = magnitude > 0x7f800000 ? 0 : magnitude;
    const int32_t negative = bits < 0 ? magnitude : 0;
    const int32_t positive = bits < 0 ? 0 : magnitude;
    below = negative > below ? negative : below;
    above = positive > above ? positive : above;
  }
  MinMax range;
  std::memcpy(&range.min, &below, sizeof(below));
  std::memcpy(&range.max, &above, sizeof(above));
  range.min = 0.0f - range.min;
  return range;
}

void f32_u8_quantize_row__portable(const float* x, int64_t n, float scale, int32_t zero_point, uint8_t* codes) {
  const float lo = static_cast<float>(-zero_point);
  const float hi = static_cast<float>(255 - zero_point);
  for (int64_t i = 0; i < n; ++i) {
    const float value = x[i] == x[i] ? x[i] : 0.0f;
    codes[i] = static_cast<uint8_t>(CodeOffset(value, scale, lo, hi) + zero_point);
  }
}

void f32_u16_quantize_row__portable(const float* x, int64_t n, float scale, int32_t zero_point, uint8_t* high,
                                    uint8_t* low) {
  const float lo = static_cast<float>(-zero_point);
  const float hi = static_cast<float>(65535 - zero_point);
  for (int64_t i = 0; i < n; ++i) {
    const float value = x[i] == x[i] ? x[i] : 0.0f;
    const int32_t code = CodeOffset(value, scale, lo, hi) + zero_point;
    high[i] = static_cast<uint8_t>(code >> 8);
    low[i] = static_cast<uint8_t>(code & 255);
  }
}

void s32_f32_join__portable(const JoinArgs& args) {
  const int64_t begin = args.block_begin * kBlockColumns;
  const int64_t columns = (args.block_end - args.block_begin) * kBlockColumns;
  const int32_t* start = args.start + begin;
  const float* multiplier = args.multiplier + begin;
  for (int64_t row = 0; row < args.rows; ++row) {
    const int32_t* high = args.acc + 2 * row * args.acc_stride + begin;
    const int32_t* low = high + args.acc_stride;
    const int32_t z_high = args.zero_point[2 * row];
    const int32_t z_low = args.zero_point[2 * row + 1];
    const float* bias = args.bias + row * args.bias_stride + begin;
    float* p = args.p + row * args.p_stride + begin;
    for (int64_t j = 0; j < columns; ++j) {
      const float upper = static_cast<float>(high[j] + z_high * start[j]) * 256.0f;
      float value = upper + static_cast<float>(low[j] + z_low * start[j]);
      if (args.row_scale != nullptr) value = value * args.row_scale[row];
      value = value * multiplier[j];
      p[j] = value + bias[j];
    }
  }
}

void u8s8_s32_recurrent_1x4__portable(const RecurrentArgs& args) {
  const MatmulArgs& m = args.matmul;
  const int16_t* weights = static_cast<const int16_t*>(m.weights);
  for (int64_t j = m.block_begin * kBlockColumns; j < m.block_end * kBlockColumns; j += 4) {
    for (int64_t row = 0; row < m.rows; ++row) {
      int32_t sums[4];
      Dot4(m.a + row * m.a_stride, weights + j * m.k_padded, m.k_padded, sums);
      int32_t* acc = args.acc + row * args.acc_stride + j;
      for (int64_t i = 0; i < 4; ++i) acc[i] = m.start[j + i] + sums[i];
    }
  }
}

void u8s8_f32_project_1x4__portable(const ProjectArgs& args) {
  const MatmulArgs& m = args.matmul;
  const int16_t* weights = static_cast<const int16_t*>(m.weights);
  for (int64_t j = m.block_begin * kBlockColumns; j < m.block_end * kBlockColumns; j += 4) {
    for (int64_t row = 0; row < m.rows; ++row) {
      int32_t sums[4];
      Dot4(m.a + row * m.a_stride, weights + j * m.k_padded, m.k_padded, sums);
      const int32_t zero_point = args.row_zero_point != nullptr ? args.row_zero_point[row] : 1;
      float* p = args.p + row * args.p_stride + j;
      for (int64_t i = 0; i < 4; ++i) {
        float value = static_cast<float>(zero_point * m.start[j + i] + sums[i]);
        if (args.row_scale != nullptr) value = value * args.row_scale[row];
        value = value * args.multiplier[j + i];
        p[i] = value + args.bias[j + i];
      }
    }
  }
}

void s32_table_cell_16__portable(const TableCellArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t block = args.block_begin; block < args.block_end; ++block) {
      const int64_t unit = block * kBlockUnits;
      const int64_t column = block * kBlockColumns;
      const int64_t left = args.units - unit;
      float tail[kBlockUnits];
      TableCellRow part;
      part.acc = args.acc + row * args.acc_stride + column;
      part.p = args.p + row * args.p_stride + column;
      part.h_multiplier = args.h_multiplier + column;
      part.c = args.c + row * args.c_stride + unit;
      part.h = args.h + row * args.h_stride + unit;
      part.y = left >= kBlockUnits ? args.y[row] + unit : tail;
      TableCellBlock(args, part);
      if (left < kBlockUnits) std::memcpy(args.y[row] + unit, tail, static_cast<size_t>(left) * sizeof(float));
    }
  }
}

}  // namespace rnnqc
