// A C ABI through which tests drive every kernel of every instruction set, in a library of their own. `isa` is a name
// from rnnqc_test_isa_name; buffers are as kernels/kernel_table.h says.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "calls.h"
#include "export.h"
#include "kernels/common/fused_cell.h"
#include "kernels/common/packing.h"
#include "kernels/common/reciprocal.h"
#include "kernels/dispatch.h"
#include "threads/team.h"

namespace {

// Phases like the steps of a cell: every part computes some cells from all cells of the phase before. The result does
// not depend on the parts; a part that runs twice, early or late does show.
class TeamProbe {
 public:
  static constexpr int64_t kCells = rnnqc::Team::kMaxMembers;

  TeamProbe(const std::vector<int64_t>& parts, int64_t expected)
      : parts_(parts), expected_(expected), team_(Part, this) {
    for (int64_t i = 0; i < kCells; ++i) before_[i] = static_cast<uint64_t>(i);
  }

  // Task of one thread.
  void Work() {
    if (!team_.Lead()) {
      team_.Help();
      return;
    }
    while (team_.Members() < expected_) std::this_thread::yield();
    for (const int64_t parts : parts_) {
      ++phase_;
      team_.Run(parts);
      std::swap(before_, after_);
    }
    team_.Finish();
  }

  int64_t Members() const { return team_.Members(); }
  const uint64_t* cells() const { return before_; }
  const int64_t* runs() const { return runs_; }

 private:
  static void Part(void* self, int64_t part, int64_t parts) {
    TeamProbe& probe = *static_cast<TeamProbe*>(self);
    for (int64_t i = kCells * part / parts; i < kCells * (part + 1) / parts; ++i) {
      probe.after_[i] = probe.before_[i] * 6364136223846793005u + probe.before_[(i + 17) % kCells] + probe.phase_;
      ++probe.runs_[i];
    }
  }

  const std::vector<int64_t>& parts_;
  int64_t expected_;
  uint64_t phase_ = 0;
  uint64_t memory_[2][kCells] = {};
  uint64_t* before_ = memory_[0];
  uint64_t* after_ = memory_[1];
  int64_t runs_[kCells] = {};
  rnnqc::Team team_;
};

}  // namespace

extern "C" {

// In the place of bits: of four bits that are indices of sets, whose multipliers are bytes of groups.
constexpr int32_t kSetIndices = -4;

struct rnnqc_test_product {
  int32_t bits;  // of the weights: 4, 6, 8, or kSetIndices
  const uint8_t* a;
  int64_t a_stride;
  int64_t rows;
  const void* packed;
  int64_t k;
  int64_t units;
  const uint8_t* multipliers;
  int64_t group_size;
  const int32_t* start;
  int64_t block_begin;
  int64_t block_end;
  int64_t columns;
  int32_t descending;
};

struct rnnqc_test_cell {
  int64_t rows;
  int64_t units;
  int64_t block_begin;
  int64_t block_end;
  const int32_t* acc;
  const float* p;
  const float* h_multiplier;
  int32_t short_tail;
  const float* peephole;  // null of a cell without
  float gate_min[4];
  float gate_max[4];
  const float* gate_table[4];
  float cell_max;
  float cell_index_scale;
  const float* cell_table;
  int32_t cell_table_size;
  float h_scale;
  int32_t h_zero_point;
  float* c;
  float* const* y;
  uint8_t* h;
};

// The largest pre-activation but for its sign; NaN if there is a NaN.
static float LargestPreActivation(const rnnqc::TableCellArgs& args) {
  float largest = 0.0f;
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t j = args.block_begin * rnnqc::kBlockColumns; j < args.block_end * rnnqc::kBlockColumns; ++j) {
      const float product = static_cast<float>(args.acc[row * args.acc_stride + j]) * args.h_multiplier[j];
      const float v = std::fabs(product + args.p[row * args.p_stride + j]);
      if (std::isnan(v)) return v;
      largest = std::fmax(largest, v);
    }
  }
  return largest;
}

static bool FindLinear(const rnnqc_test_cell& cell, rnnqc::LinearTables* linear) {
  rnnqc::TableExtent tables = rnnqc::ExtentOf(cell, rnnqc::kGates);
  tables.cell_table = cell.cell_table;
  tables.cell_table_size = cell.cell_table_size;
  return rnnqc::FindLinearTables(tables, linear);
}

static rnnqc::TableCellArgs CellArgsOf(const rnnqc_test_cell& cell, rnnqc::LinearTables* linear) {
  auto args = rnnqc::StepArgsOf<rnnqc::TableCellArgs>(cell);
  rnnqc::SetGates(cell, rnnqc::kGates, &args);
  args.linear = FindLinear(cell, linear) ? linear : nullptr;
  args.v_max = LargestPreActivation(args);
  args.short_tail = cell.short_tail != 0;
  args.peephole = cell.peephole;
  args.cell_max = cell.cell_max;
  args.cell_index_scale = cell.cell_index_scale;
  args.cell_table = cell.cell_table;
  args.cell_table_size = cell.cell_table_size;
  args.c = cell.c;
  args.c_stride = args.h_stride;
  return args;
}

RNNQC_EXPORT void rnnqc_test_table_cell(const char* isa, const rnnqc_test_cell* cell) {
  rnnqc::LinearTables linear;
  const rnnqc::KernelTable& kernels = *rnnqc::FindTable(isa);
  rnnqc::TableCellArgs args = CellArgsOf(*cell, &linear);
  if (cell->peephole != nullptr) return kernels.peephole_cell(args);
  rnnqc::AlignedArray<uint8_t> constants(rnnqc::kCellConstantBytes);
  if (kernels.prepare_cell != nullptr) {
    kernels.prepare_cell(args, constants.data());
    args.constants = constants.data();
  }
  kernels.table_cell(args);
}

// Whether rnnqc_test_table_cell gives the kernel a linear form of the tables, and whether the cell is fused.
RNNQC_EXPORT int32_t rnnqc_test_has_linear_tables(const rnnqc_test_cell* cell) {
  rnnqc::LinearTables linear;
  return FindLinear(*cell, &linear) ? 1 : 0;
}
RNNQC_EXPORT int32_t rnnqc_test_is_fused_cell(const rnnqc_test_cell* cell) {
  rnnqc::LinearTables linear;
  return rnnqc::IsFusedCell(CellArgsOf(*cell, &linear)) ? 1 : 0;
}

RNNQC_EXPORT int32_t rnnqc_test_reciprocal(float scale, float* upper, float* lower) {
  const rnnqc::Reciprocal found = rnnqc::FindReciprocal(scale);
  *upper = found.upper;
  *lower = found.lower;
  return found.exact ? 1 : 0;
}

RNNQC_EXPORT int32_t rnnqc_test_isa_count() { return static_cast<int32_t>(rnnqc::AvailableTables().size()); }

RNNQC_EXPORT const char* rnnqc_test_isa_name(int32_t index) {
  return rnnqc::AvailableTables()[static_cast<size_t>(index)].isa;
}

RNNQC_EXPORT void rnnqc_test_vector(const char* isa, const rnnqc::VectorArgs* args) {
  rnnqc::FindTable(isa)->vector(*args);
}

// Whether two instruction sets have the same kernels but for products.
RNNQC_EXPORT int32_t rnnqc_test_same_steps(const char* isa, const char* other) {
  const rnnqc::KernelTable& a = *rnnqc::FindTable(isa);
  const rnnqc::KernelTable& b = *rnnqc::FindTable(other);
  return a.max_abs == b.max_abs && a.min_max == b.min_max && a.quantize_row == b.quantize_row &&
                 a.quantize_row_16 == b.quantize_row_16 && a.join == b.join && a.table_cell == b.table_cell &&
                 a.peephole_cell == b.peephole_cell && a.gru_cell == b.gru_cell && a.gru_reset == b.gru_reset &&
                 a.gru_output == b.gru_output && a.rnn_cell == b.rnn_cell && a.vector == b.vector
             ? 1
             : 0;
}

// Whether their products are the same.
RNNQC_EXPORT int32_t rnnqc_test_same_products(const char* isa, const char* other) {
  const rnnqc::KernelTable& a = *rnnqc::FindTable(isa);
  const rnnqc::KernelTable& b = *rnnqc::FindTable(other);
  return a.format == b.format && a.format_s4 == b.format_s4 && a.project == b.project && a.recurrent == b.recurrent &&
                 a.project_s4 == b.project_s4 && a.recurrent_s4 == b.recurrent_s4 && a.project_sets == b.project_sets &&
                 a.recurrent_sets == b.recurrent_sets && a.project_s6 == b.project_s6 &&
                 a.recurrent_s6 == b.recurrent_s6
             ? 1
             : 0;
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

static rnnqc::PackedFormat Format(const char* isa, int32_t bits) {
  const rnnqc::PackedFormats formats = rnnqc::Formats(*rnnqc::FindTable(isa));
  return bits == kSetIndices ? formats.sets : formats.Of(bits);
}

static rnnqc::MatmulArgs Matmul(const char* isa, const rnnqc_test_product& product) {
  rnnqc::MatmulArgs matmul{};
  matmul.a = product.a;
  matmul.a_stride = product.a_stride;
  matmul.rows = product.rows;
  matmul.weights = product.packed;
  matmul.k_padded = rnnqc::PaddedDepth(Format(isa, product.bits), product.k);
  matmul.multipliers = product.multipliers;
  matmul.group_size = product.group_size;
  matmul.start = product.start;
  matmul.block_begin = product.block_begin;
  matmul.block_end = product.block_end;
  matmul.columns = product.columns;
  matmul.descending = product.descending != 0;
  return matmul;
}

// Whether the instruction set multiplies weights of so many bits.
RNNQC_EXPORT int32_t rnnqc_test_has_bits(const char* isa, int32_t bits) {
  return rnnqc::BitsOf(Format(isa, bits)) == std::abs(bits) ? 1 : 0;
}

RNNQC_EXPORT int64_t rnnqc_test_padded_depth(const char* isa, int32_t bits, int64_t k) {
  return rnnqc::PaddedDepth(Format(isa, bits), k);
}

RNNQC_EXPORT int64_t rnnqc_test_packed_bytes(const char* isa, int32_t bits, int64_t k, int64_t units) {
  return rnnqc::PackedBytes(Format(isa, bits), k, units);
}

RNNQC_EXPORT void rnnqc_test_pack(const char* isa, const int8_t* weights, int64_t k, int64_t units, int32_t short_tail,
                                  int32_t zero_point, void* packed, int32_t* start) {
  rnnqc::PackWeights(rnnqc::FindTable(isa)->format, weights, k, units, packed, rnnqc::kGates, short_tail != 0);
  rnnqc::PackStartValues(weights, k, units, zero_point, start, rnnqc::kGates, short_tail != 0);
}

// Whether the instruction set's table_cell takes short tails.
RNNQC_EXPORT int32_t rnnqc_test_has_short_tails(const char* isa) { return rnnqc::FindTable(isa)->short_tails ? 1 : 0; }

// The columns that sums are needed of, of a matrix of int8.
RNNQC_EXPORT int64_t rnnqc_test_columns(const char* isa, int64_t units, int64_t gates, int32_t short_tail) {
  const std::vector<int8_t> weights(static_cast<size_t>(units * gates), 0);
  rnnqc::Matrix matrix{weights.data(), 1, units, nullptr, 0, gates};
  matrix.short_tail = short_tail != 0;
  return rnnqc::PackMatrix(rnnqc::Formats(*rnnqc::FindTable(isa)), rnnqc::Width::kEight, matrix, 0).columns;
}

// Weights of four or six bits; fewer than they need are not looked for. `multipliers` of
// [GroupCount(k, group_size), 4 * units] groups, or null.
RNNQC_EXPORT void rnnqc_test_pack_few_bits(const char* isa, int32_t bits, const int8_t* weights,
                                           const uint8_t* multipliers, int64_t group_size, int64_t k, int64_t units,
                                           int32_t short_tail, int32_t zero_point, void* packed,
                                           uint8_t* packed_multipliers, int32_t* start) {
  rnnqc::Matrix matrix{weights, k, units, multipliers, group_size};
  matrix.sets = bits == kSetIndices;
  matrix.short_tail = short_tail != 0;
  const rnnqc::PackedFormat format = Format(isa, bits);
  const rnnqc::PackedFormats formats{rnnqc::FindTable(isa)->format, format, format, format, 0};
  const rnnqc::PackedMatrix result = rnnqc::PackMatrix(formats, rnnqc::Width::kFewest, matrix, zero_point);
  std::memcpy(packed, result.weights.data(), static_cast<size_t>(result.weights.size()));
  std::memcpy(start, result.start.data(), static_cast<size_t>(result.start.size()) * sizeof(int32_t));
  if (multipliers == nullptr) return;
  std::memcpy(packed_multipliers, result.multipliers.data(), static_cast<size_t>(result.multipliers.size()));
}

// The bytes of a matrix of one gate, of which columns may stand apart if it has `least` weights; in `apart` how many
// do.
RNNQC_EXPORT int64_t rnnqc_test_mixed_bytes(const char* isa, const int8_t* weights, const uint8_t* multipliers,
                                            int64_t group_size, int64_t k, int64_t units, int64_t least,
                                            int64_t* apart) {
  const rnnqc::Matrix matrix{weights, k, units, multipliers, group_size, 1};
  rnnqc::PackedFormats formats = rnnqc::Formats(*rnnqc::FindTable(isa));
  formats.least_apart = least;
  const rnnqc::PackedMatrix result = rnnqc::PackMatrix(formats, rnnqc::Width::kMixed, matrix, 0);
  *apart = static_cast<int64_t>(result.wide_columns.size());
  return result.bytes();
}

// The fewest weights of a matrix whose columns may stand apart.
RNNQC_EXPORT int64_t rnnqc_test_least_apart() { return rnnqc::PackedFormats().least_apart; }

RNNQC_EXPORT void rnnqc_test_recurrent(const char* isa, const rnnqc_test_product* product, int32_t* acc) {
  const rnnqc::KernelTable& table = *rnnqc::FindTable(isa);
  rnnqc::RecurrentArgs args{};
  args.matmul = Matmul(isa, *product);
  args.acc = acc;
  args.acc_stride = rnnqc::BlockCount(product->units) * rnnqc::kBlockColumns;
  rnnqc::RecurrentOf(table, Format(isa, product->bits))(args);
}

RNNQC_EXPORT void rnnqc_test_project(const char* isa, const rnnqc_test_product* product, const float* row_scale,
                                     const int32_t* row_zero_point, const float* multiplier, const float* bias,
                                     float* p) {
  const rnnqc::KernelTable& table = *rnnqc::FindTable(isa);
  rnnqc::ProjectArgs args{};
  args.matmul = Matmul(isa, *product);
  args.row_scale = row_scale;
  args.row_zero_point = row_zero_point;
  args.multiplier = multiplier;
  args.bias = bias;
  args.p = p;
  args.p_stride = rnnqc::BlockCount(product->units) * rnnqc::kBlockColumns;
  rnnqc::ProjectOf(table, Format(isa, product->bits))(args);
}

// Runs phases of `parts` parts with a team of `threads` threads, or, if not `together`, with as many tasks on one
// thread. The leader begins when the team has `expected` members (1: at once). Writes 64 cells, and how many phases
// computed each; returns the members.
RNNQC_EXPORT int64_t rnnqc_test_team(int64_t threads, int32_t together, int64_t expected, int64_t phases,
                                     const int64_t* parts, uint64_t* cells, int64_t* runs) {
  const std::vector<int64_t> all_parts(parts, parts + phases);
  TeamProbe probe(all_parts, expected);
  std::vector<std::thread> others;
  for (int64_t i = 1; i < threads && together != 0; ++i) others.emplace_back([&probe] { probe.Work(); });
  for (int64_t i = 0; i < (together != 0 ? 1 : threads); ++i) probe.Work();
  for (std::thread& other : others) other.join();
  std::memcpy(cells, probe.cells(), TeamProbe::kCells * sizeof(uint64_t));
  std::memcpy(runs, probe.runs(), TeamProbe::kCells * sizeof(int64_t));
  return probe.Members();
}

}  // extern "C"
