// Plain C++ that compilers vectorise for the baseline of the architecture.

#include <cstdint>
#include <cstring>

#include "kernels/common/rounding.h"
#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

struct TableCellRow {
  const int32_t* acc;
  const float* p;
  const float* h_multiplier;
  const float* peephole;
  float* c;
  float* y;
  uint8_t* h;
};

// Entries of a gate; kSees: it has a peephole on row.c.
template <bool kSees>
inline void GateEntries(const TableCellArgs& args, const TableCellRow& row, int64_t g, float* entries) {
  const float lo = args.gate_min[g];
  const float hi = args.gate_max[g];
  int32_t index[kBlockUnits];
  for (int64_t u = 0; u < kBlockUnits; ++u) {
    const int64_t j = g * kBlockUnits + u;
    const float product = static_cast<float>(row.acc[j]) * row.h_multiplier[j];
    float v = product + row.p[j];
    if (kSees) {
      const float seen = row.peephole[j] * row.c[u];
      v = v + seen;
    }
    index[u] = static_cast<int32_t>(Limit(v, lo, hi));
  }
  const float* table = args.gate_table[g];
  for (int64_t u = 0; u < kBlockUnits; ++u) entries[u] = table[index[u]];
}

// kWhole: the cell state is a whole number.
template <bool kPeepholes, bool kWhole>
inline void TableCellBlock(const TableCellArgs& args, const TableCellRow& row) {
  float gates[kGates][kBlockUnits];
  GateEntries<kPeepholes>(args, row, 0, gates[0]);
  GateEntries<kPeepholes>(args, row, 2, gates[2]);
  GateEntries<false>(args, row, 3, gates[3]);
  int32_t index[kBlockUnits];
  const float half = static_cast<float>(args.cell_table_size / 2);
  for (int64_t u = 0; u < kBlockUnits; ++u) {
    const float kept = gates[2][u] * row.c[u];
    const float added = gates[0][u] * gates[3][u];
    const float c = Limit(kept + added, -args.cell_max, args.cell_max);
    row.c[u] = kWhole ? RoundEven(c) : c;
  }
  GateEntries<kPeepholes>(args, row, 1, gates[1]);
  for (int64_t u = 0; u < kBlockUnits; ++u) {
    const float c = kWhole ? row.c[u] : row.c[u] * args.cell_index_scale;
    const float limited = Limit(c, -half, half - 1.0f);
    const int32_t code = static_cast<int32_t>(kWhole ? limited : RoundEven(limited));
    index[u] = code + ((code >> 31) & args.cell_table_size);
  }
  const float lo = static_cast<float>(-args.h_zero_point);
  const float hi = static_cast<float>(255 - args.h_zero_point);
  for (int64_t u = 0; u < kBlockUnits; ++u) row.y[u] = gates[1][u] * args.cell_table[index[u]];
  for (int64_t u = 0; u < kBlockUnits; ++u) {
    row.h[u] = static_cast<uint8_t>(CodeOffset(row.y[u], args.h_scale, lo, hi) + args.h_zero_point);
  }
}

template <bool kPeepholes, bool kWhole>
void RunCells(const TableCellArgs& args) {
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
      part.peephole = kPeepholes ? args.peephole + column : nullptr;
      part.c = args.c + row * args.c_stride + unit;
      part.h = args.h + row * args.h_stride + unit;
      part.y = left >= kBlockUnits ? args.y[row] + unit : tail;
      TableCellBlock<kPeepholes, kWhole>(args, part);
      if (left < kBlockUnits) std::memcpy(args.y[row] + unit, tail, static_cast<size_t>(left) * sizeof(float));
    }
  }
}

template <bool kPeepholes>
void RunCellsOfKind(const TableCellArgs& args) {
  if (args.cell_index_scale == 0.0f) {
    RunCells<kPeepholes, true>(args);
  } else {
    RunCells<kPeepholes, false>(args);
  }
}

}  // namespace

void s32_table_cell_16__portable(const TableCellArgs& args) { RunCellsOfKind<false>(args); }

void s32_peephole_cell_16__portable(const TableCellArgs& args) { RunCellsOfKind<true>(args); }

}  // namespace rnnqc
