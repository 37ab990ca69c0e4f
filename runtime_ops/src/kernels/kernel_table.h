#ifndef RNNQC_KERNELS_KERNEL_TABLE_H_
#define RNNQC_KERNELS_KERNEL_TABLE_H_

#include <cstdint>

#include "kernels/common/activation.h"
#include "kernels/common/fixed_point/fixed_point_bytes.h"
#include "kernels/common/linear_tables.h"
#include "kernels/common/packing.h"
#include "kernels/common/reciprocal.h"
#include "kernels/common/vector.h"

namespace rnnqc {

// The whole interface between the cells and the instruction sets. Kernels get raw pointers and sizes, allocate
// nothing, read and write nothing outside the extents named here, and give the same bits on every instruction set:
// int32 sums are exact, every float operation is one IEEE binary32 operation in the order written.

// acc[r][column] = start[column] + sum over k of a[r][k] * W[k][column], for the columns of blocks
// [block_begin, block_end).
struct MatmulArgs {
  const uint8_t* a;  // `rows` rows of k_padded codes; what stands in the padding does not matter
  int64_t a_stride;
  int64_t rows;
  const void* weights;  // in one of the table's packed formats
  int64_t k_padded;
  // Of four and six bits only: [blocks][groups of group_size k][64 columns]; null if all are 1. A weight is its number
  // times its multiplier, -128 .. 127. Of kS4Sets: its records; of kS4Places: multipliers and sets.
  const uint8_t* multipliers;
  int64_t group_size;
  const int32_t* start;  // block order
  int64_t block_begin;
  int64_t block_end;
  int64_t columns;  // PackedMatrix::columns: sums of columns from here on need not be written
  // A hint for the order in which weights are read. Calls that alternate find the weights read last in the cache.
  bool descending;
};

struct RecurrentArgs {
  MatmulArgs matmul;
  int32_t* acc;  // block order, `rows` rows
  int64_t acc_stride;
};

// p[r][column] = f32(acc) * multiplier + bias. With rows that have a grid each, acc starts from
// row_zero_point[r] * start[column] (`start` then belongs to zero point 1) and
// p[r][column] = (f32(acc) * row_scale[r]) * multiplier + bias.
struct ProjectArgs {
  MatmulArgs matmul;
  const float* row_scale;         // `rows` values; null if all rows have one grid
  const int32_t* row_zero_point;  // `rows` values in 0 .. 255; null exactly if row_scale is
  const float* multiplier;        // block order
  const float* bias;              // block order
  float* p;                       // block order, `rows` rows
  int64_t p_stride;
};

// Products of 16-bit codes: rows 2r and 2r + 1 of acc, without start values, are the sums over the upper and the lower
// bytes of row r. With z = zero_point[2r], zero_point[2r + 1],
//
//   value = f32(acc[2r] + z[0] * start) * 256 + f32(acc[2r + 1] + z[1] * start)
//   p[r][column] = value * multiplier + bias, or (value * row_scale[r]) * multiplier + bias
//
// for the columns of blocks [block_begin, block_end).
struct JoinArgs {
  int64_t rows;
  int64_t block_begin;
  int64_t block_end;
  const int32_t* acc;  // block order
  int64_t acc_stride;
  const int32_t* start;       // block order, of zero point 1
  const int32_t* zero_point;  // two values 0 .. 255 for each row
  const float* row_scale;     // `rows` values, or null
  const float* multiplier;    // block order
  const float* bias;          // block order; may be p
  int64_t bias_stride;        // 0 if all rows have one
  float* p;                   // block order
  int64_t p_stride;
};

// What an instruction set's table_cell makes once for many steps.
constexpr int64_t kCellConstantBytes = 4096;

// One step of the LSTM from accumulators to hidden codes: four table gates, output table, codes of a static scale.
// Works on blocks [block_begin, block_end). With v = f32(acc) * h_multiplier + p of a gate, peephole_cell takes v +
// peephole * c: the state before the step for gates i and f, the one after it for o.
struct TableCellArgs {
  int64_t rows;
  int64_t units;
  bool short_tail;  // of the columns; true for table_cell of a KernelTable with short_tails only
  int64_t block_begin;
  int64_t block_end;
  const int32_t* acc;  // block order
  int64_t acc_stride;
  const float* p;  // block order
  int64_t p_stride;
  const float* h_multiplier;  // block order
  const float* peephole;      // block order; of peephole_cell only
  float v_max;                // of prepare_cell: |v| is at most this; infinite or NaN if that is not known
  float gate_min[kGates];
  float gate_max[kGates];
  const float* gate_table[kGates];  // valid at trunc(gate_min) .. trunc(gate_max)
  float cell_max;                   // a whole number <= 2^60
  float cell_index_scale;           // codes in a unit of a float cell; 0 of a cell of whole numbers, which are codes
  const float* cell_table;          // code k stands at k, or at k + cell_table_size if k < 0; codes beyond saturate
  int32_t cell_table_size;          // even, at least 2
  const LinearTables* linear;       // the same tables in another form; null if they have none
  float h_scale;
  Reciprocal h_reciprocal;  // of h_scale
  int32_t h_zero_point;
  float* c;  // in and out; rows of 16 * blocks
  int64_t c_stride;
  float* const* y;  // `rows` pointers to `units` floats
  uint8_t* h;       // rows of 16 * blocks
  int64_t h_stride;
  // Of table_cell only: what prepare_cell wrote, of the same arguments but for the rows, the blocks and where they
  // stand; null exactly if the KernelTable has no prepare_cell.
  const void* constants;
};

// Options of a step of a cell without a cell state, beyond table gates and codes with one scale.
struct HiddenCellOptions {
  Activation gates[kGates];
  const float* row_scale;  // a = (f32(acc) * row_scale[row]) * h_multiplier; or null
  const float* products;   // a, laid out as acc, in its place; or null
  float* reset;            // where gru_reset writes r * state if it writes no codes; rows as of the state
};

// Steps of the cells without a cell state, from accumulators to hidden codes. They work on blocks of units
// [block_begin, block_end); "[gates]" below is block order with so many gates.
//
// With the pre-activation v of a gate, look(g, v) = gate_table[g][trunc(limit(v, gate_min[g], gate_max[g]))], or what
// kernels/common/activation.h says of limit(v, gate_min[g], gate_max[g]), which sends NaN to gate_max[g].
struct HiddenCellArgs {
  int64_t rows;
  int64_t units;
  int64_t block_begin;
  int64_t block_end;
  const int32_t* acc;  // a = f32(acc) * h_multiplier
  int64_t acc_stride;
  const float* h_multiplier;
  const float* p;
  int64_t p_stride;
  float gate_min[kGates];
  float gate_max[kGates];
  const float* gate_table[kGates];   // valid at trunc(gate_min) .. trunc(gate_max), or 0 .. index_size - 1
  const LinearTables* linear;        // the same tables in another form; null if they have none
  const HiddenCellOptions* options;  // null if there are none; NaN, which may come of them, has the code of 0
  const float* hidden_bias;          // 16 * blocks values
  float h_scale;                     // of the codes that are written
  Reciprocal h_reciprocal;           // of h_scale
  int32_t h_zero_point;
  float* state;  // in and out, h of the GRU; rows of 16 * blocks
  float* z;      // rows as of the state
  int64_t state_stride;
  float* const* y;  // `rows` pointers to `units` floats
  uint8_t* h;       // codes; rows of 16 * blocks; with options it may be null
  int64_t h_stride;
};

// GRU with linear_before_reset; acc [3], p [3], gates z, r, h:
//
//   z = look(0, a_z + p_z), r = look(1, a_r + p_r), n = look(2, r * (a_h + hidden_bias) + p_h)
//   y = state' = limit((1 - z) * n + z * state, -2^60, 2^60), h = their codes
//
// and without it the two halves of a step: acc [2], p [3] to z and the codes of r * state, and acc [1], p [3], z to
// n = look(2, a + p_h), state', y and h.
using HiddenCellFn = void(const HiddenCellArgs& args);

// max |x[i]|, NaN counting as 0; 0 for n = 0.
using MaxAbsFn = float(const float* x, int64_t n);
struct MinMax {
  float min;
  float max;
};
// The least and the largest of 0 and all x[i], NaN counting as 0; a zero is positive.
using MinMaxFn = MinMax(const float* x, int64_t n);
// codes[i] = sat8(rne(x[i] / scale) + zero_point), NaN counting as 0; zero_point in 0 .. 255.
using QuantizeRowFn = void(const float* x, int64_t n, float scale, int32_t zero_point, uint8_t* codes);
// The same for codes sat16(..) with zero_point in 0 .. 65535, their upper and lower bytes apart.
using QuantizeRow16Fn = void(const float* x, int64_t n, float scale, int32_t zero_point, uint8_t* high, uint8_t* low);
using JoinFn = void(const JoinArgs& args);
using ProjectFn = void(const ProjectArgs& args);
using RecurrentFn = void(const RecurrentArgs& args);
using TableCellFn = void(const TableCellArgs& args);
// Writes at most kCellConstantBytes bytes, aligned to kAlignment.
using PrepareCellFn = void(const TableCellArgs& args, void* constants);

struct KernelTable {
  const char* isa;
  PackedFormat format;
  PackedFormat format_s4;    // of weights of four bits
  PackedFormat format_sets;  // of those that are values of sets
  int64_t rows_at_once;      // as many as take about the time of one, because the weights are read all the same
  int64_t least_sets;        // weights of a matrix that is packed as values of sets
  bool short_tails;          // whether table_cell takes them
  MaxAbsFn* max_abs;
  MinMaxFn* min_max;
  QuantizeRowFn* quantize_row;
  QuantizeRow16Fn* quantize_row_16;
  JoinFn* join;
  ProjectFn* project;
  RecurrentFn* recurrent;
  ProjectFn* project_s4;        // of format_s4; null if there is none: such matrices are packed as int8 then
  RecurrentFn* recurrent_s4;    // null exactly if project_s4 is
  ProjectFn* project_sets;      // of format_sets; null if there is none: such matrices are packed as int8 then
  RecurrentFn* recurrent_sets;  // null exactly if project_sets is
  ProjectFn* project_s6;        // of kS6Blocks; null if there is none: such matrices are packed as int8 then
  RecurrentFn* recurrent_s6;    // null exactly if project_s6 is
  PrepareCellFn* prepare_cell;  // null if table_cell needs no constants
  TableCellFn* table_cell;
  TableCellFn* peephole_cell;
  GridBytesFn* grid_bytes;
  HiddenCellFn* gru_cell;
  HiddenCellFn* gru_reset;
  HiddenCellFn* gru_output;
  HiddenCellFn* rnn_cell;  // acc [1], p [1]: y = look(0, a + p), h its codes
  VectorFn* vector;
};

// The formats of matrices of each width: those of int8 where the instruction set has no others.
inline PackedFormats Formats(const KernelTable& kernels) {
  return {kernels.format, kernels.recurrent_s6 != nullptr ? PackedFormat::kS6Blocks : kernels.format,
          kernels.recurrent_s4 != nullptr ? kernels.format_s4 : kernels.format,
          kernels.recurrent_sets != nullptr ? kernels.format_sets : kernels.format, kernels.least_sets};
}

inline bool HasSets(PackedFormat format) {
  return format == PackedFormat::kS4Sets || format == PackedFormat::kS4Places;
}

// The products of matrices in a format. Inline: a step of a small cell takes less time than some calls that cannot be
// foreseen.
inline RecurrentFn* RecurrentOf(const KernelTable& kernels, PackedFormat format) {
  if (HasSets(format)) return kernels.recurrent_sets;
  const int64_t bits = BitsOf(format);
  return bits == 4 ? kernels.recurrent_s4 : bits == 6 ? kernels.recurrent_s6 : kernels.recurrent;
}

inline ProjectFn* ProjectOf(const KernelTable& kernels, PackedFormat format) {
  if (HasSets(format)) return kernels.project_sets;
  const int64_t bits = BitsOf(format);
  return bits == 4 ? kernels.project_s4 : bits == 6 ? kernels.project_s6 : kernels.project;
}

#define RNNQC_ISA(isa, format, format_s4, format_sets, rows, sets_from, short_tails)
#define RNNQC_KERNEL(isa, entry, type, symbol) type symbol;
#include "kernels/kernels.inc"
#undef RNNQC_KERNEL
#undef RNNQC_ISA

}  // namespace rnnqc

#endif  // RNNQC_KERNELS_KERNEL_TABLE_H_
