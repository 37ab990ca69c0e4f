// A small C ABI through which tests drive every kernel of every instruction set. Not for applications: it may change
// with every version. `isa` is a name from rnnqc_test_isa_name; buffers are as kernels/kernel_table.h says.

#include <cstdint>

#include "export.h"
#include "kernels/dispatch.h"
#include "kernels/packing.h"

namespace {

rnnqc::MatmulArgs Matmul(const rnnqc::KernelTable& table, const uint8_t* a, int64_t a_stride, int64_t rows,
                         const void* packed, int64_t k, int64_t units, const int32_t* start) {
  rnnqc::MatmulArgs matmul{};
  matmul.a = a;
  matmul.a_stride = a_stride;
  matmul.rows = rows;
  matmul.weights = packed;
  matmul.k_padded = rnnqc::PaddedDepth(table.format, k);
  matmul.start = start;
  matmul.block_begin = 0;
  matmul.block_end = rnnqc::BlockCount(units);
  return matmul;
}

}  // namespace

extern "C" {

struct rnnqc_test_cell {
  int64_t rows;
  int64_t units;
  const int32_t* acc;
  const float* p;
  const float* h_multiplier;
  float gate_min[4];
  float gate_max[4];
  const float* gate_table[4];
  float cell_max;
  const float* cell_table;
  int32_t cell_table_size;
  float h_scale;
  int32_t h_zero_point;
  float* c;
  float* const* y;
  uint8_t* h;
};

static bool FindLinear(const rnnqc_test_cell& cell, rnnqc::LinearTables* linear) {
  rnnqc::TableExtent tables{};
  for (int gate = 0; gate < rnnqc::kGates; ++gate) {
    tables.gate_table[gate] = cell.gate_table[gate];
    tables.gate_max[gate] = cell.gate_max[gate];
  }
  tables.cell_table = cell.cell_table;
  tables.cell_table_size = cell.cell_table_size;
  return rnnqc::FindLinearTables(tables, linear);
}

// Whether rnnqc_test_table_cell gives the kernel a linear form of the tables.
RNNQC_EXPORT int32_t rnnqc_test_has_linear_tables(const rnnqc_test_cell* cell) {
  rnnqc::LinearTables linear;
  return FindLinear(*cell, &linear) ? 1 : 0;
}

RNNQC_EXPORT int32_t rnnqc_test_isa_count() { return static_cast<int32_t>(rnnqc::AvailableTables().size()); }

RNNQC_EXPORT const char* rnnqc_test_isa_name(int32_t index) {
  return rnnqc::AvailableTables()[static_cast<size_t>(index)].isa;
}

RNNQC_EXPORT float rnnqc_test_max_abs(const char* isa, const float* x, int64_t n) {
  return rnnqc::FindTable(isa)->max_abs(x, n);
}

RNNQC_EXPORT void rnnqc_test_min_max(const char* isa, const float* x, int64_t n, float* min_max) {
  const rnnqc::MinMax range = rnnqc::FindTable(isa)->min_max(x, n);
  min_max[0] = range.min;
  min_max[1] = range.max;
}

RNNQC_EXPORT void rnnqc_test_quantize_row(const char* isa, const float* x, int64_t n, float scale, int32_t zero_point,
                                          uint8_t* codes) {
  rnnqc::FindTable(isa)->quantize_row(x, n, scale, zero_point, codes);
}

RNNQC_EXPORT int64_t rnnqc_test_padded_depth(const char* isa, int64_t k) {
  return rnnqc::PaddedDepth(rnnqc::FindTable(isa)->format, k);
}

RNNQC_EXPORT int64_t rnnqc_test_packed_bytes(const char* isa, int64_t k, int64_t units) {
  return rnnqc::PackedBytes(rnnqc::FindTable(isa)->format, k, units);
}

RNNQC_EXPORT void rnnqc_test_pack(const char* isa, const int8_t* weights, int64_t k, int64_t units, int32_t zero_point,
                                  void* packed, int32_t* start) {
  rnnqc::PackWeights(rnnqc::FindTable(isa)->format, weights, k, units, packed);
  rnnqc::PackStartValues(weights, k, units, zero_point, start);
}

RNNQC_EXPORT void rnnqc_test_recurrent(const char* isa, const uint8_t* a, int64_t a_stride, int64_t rows,
                                       const void* packed, int64_t k, int64_t units, const int32_t* start,
                                       int32_t descending, int32_t* acc) {
  const rnnqc::KernelTable& table = *rnnqc::FindTable(isa);
  rnnqc::RecurrentArgs args{};
  args.matmul = Matmul(table, a, a_stride, rows, packed, k, units, start);
  args.acc = acc;
  args.acc_stride = rnnqc::BlockCount(units) * rnnqc::kBlockColumns;
  args.descending = descending != 0;
  table.recurrent(args);
}

RNNQC_EXPORT void rnnqc_test_project(const char* isa, const uint8_t* a, int64_t a_stride, int64_t rows,
                                     const void* packed, int64_t k, int64_t units, const int32_t* start,
                                     const float* row_scale, const int32_t* row_zero_point, const float* multiplier,
                                     const float* bias, float* p) {
  const rnnqc::KernelTable& table = *rnnqc::FindTable(isa);
  rnnqc::ProjectArgs args{};
  args.matmul = Matmul(table, a, a_stride, rows, packed, k, units, start);
  args.row_scale = row_scale;
  args.row_zero_point = row_zero_point;
  args.multiplier = multiplier;
  args.bias = bias;
  args.p = p;
  args.p_stride = rnnqc::BlockCount(units) * rnnqc::kBlockColumns;
  table.project(args);
}

RNNQC_EXPORT void rnnqc_test_table_cell(const char* isa, const rnnqc_test_cell* cell) {
  const int64_t blocks = rnnqc::BlockCount(cell->units);
  rnnqc::LinearTables linear;
  rnnqc::TableCellArgs args{};
  args.linear = FindLinear(*cell, &linear) ? &linear : nullptr;
  args.rows = cell->rows;
  args.units = cell->units;
  args.block_end = blocks;
  args.acc = cell->acc;
  args.acc_stride = blocks * rnnqc::kBlockColumns;
  args.p = cell->p;
  args.p_stride = blocks * rnnqc::kBlockColumns;
  args.h_multiplier = cell->h_multiplier;
  for (int gate = 0; gate < rnnqc::kGates; ++gate) {
    args.gate_min[gate] = cell->gate_min[gate];
    args.gate_max[gate] = cell->gate_max[gate];
    args.gate_table[gate] = cell->gate_table[gate];
  }
  args.cell_max = cell->cell_max;
  args.cell_table = cell->cell_table;
  args.cell_table_size = cell->cell_table_size;
  args.h_scale = cell->h_scale;
  args.h_zero_point = cell->h_zero_point;
  args.c = cell->c;
  args.c_stride = blocks * rnnqc::kBlockUnits;
  args.y = cell->y;
  args.h = cell->h;
  args.h_stride = blocks * rnnqc::kBlockUnits;
  rnnqc::FindTable(isa)->table_cell(args);
}

}  // extern "C"
