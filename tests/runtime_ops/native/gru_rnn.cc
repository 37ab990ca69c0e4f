// The part of the ABI of kernels.cc for the steps of cells with a hidden state only.

#include <cstdint>
#include <string>

#include "calls.h"
#include "export.h"
#include "kernels/dispatch.h"

extern "C" {

// A call of one of the kernels with HiddenCellArgs.
struct rnnqc_test_hidden_step {
  int64_t rows;
  int64_t units;
  int64_t block_begin;
  int64_t block_end;
  int64_t gates;      // of the cell and of p
  int64_t acc_gates;  // of acc and h_multiplier
  const int32_t* acc;
  const float* h_multiplier;
  const float* p;
  float gate_min[4];
  float gate_max[4];
  const float* gate_table[4];
  const float* hidden_bias;
  float h_scale;
  int32_t h_zero_point;
  float* state;
  float* z;
  float* const* y;
  uint8_t* h;
  // Any of HiddenCellOptions.
  int32_t has_options;
  int32_t kind[4];  // in the order of rnnqc::Kind
  float alpha[4];
  float beta[4];
  float index_scale[4];
  int32_t index_size[4];
  const float* row_scale;
  const float* products;
  float* reset;
};

static bool FindLinearGates(const rnnqc_test_hidden_step& cell, rnnqc::LinearTables* linear) {
  rnnqc::TableExtent tables = rnnqc::ExtentOf(cell, cell.gates);
  for (int64_t gate = 0; gate < cell.gates; ++gate) {
    if (cell.has_options == 0 || static_cast<rnnqc::Kind>(cell.kind[gate]) == rnnqc::Kind::kTable) continue;
    tables.gate_table[gate] = nullptr;
    tables.gate_max[gate] = 0;
  }
  return rnnqc::FindLinearTables(tables, linear);
}

// Whether rnnqc_test_hidden_cell gives the kernel a linear form of the tables.
RNNQC_EXPORT int32_t rnnqc_test_has_linear_gates(const rnnqc_test_hidden_step* cell) {
  rnnqc::LinearTables linear;
  return FindLinearGates(*cell, &linear) ? 1 : 0;
}

// `kernel`: gru_cell, gru_reset, gru_output or rnn_cell.
RNNQC_EXPORT void rnnqc_test_hidden_cell(const char* isa, const char* kernel, const rnnqc_test_hidden_step* cell) {
  const rnnqc::KernelTable& table = *rnnqc::FindTable(isa);
  rnnqc::LinearTables linear;
  auto args = rnnqc::StepArgsOf<rnnqc::HiddenCellArgs>(*cell, cell->gates, cell->acc_gates);
  rnnqc::SetGates(*cell, cell->gates, &args);
  args.linear = FindLinearGates(*cell, &linear) ? &linear : nullptr;
  args.hidden_bias = cell->hidden_bias;
  args.state = cell->state;
  args.z = cell->z;
  args.state_stride = args.h_stride;
  rnnqc::HiddenCellOptions options{};
  if (cell->has_options != 0) args.options = &options;
  for (int64_t gate = 0; gate < cell->gates; ++gate) {
    options.gates[gate] = {static_cast<rnnqc::Kind>(cell->kind[gate]), cell->alpha[gate], cell->beta[gate],
                           cell->index_scale[gate], cell->index_size[gate]};
  }
  options.row_scale = cell->row_scale;
  options.products = cell->products;
  options.reset = cell->reset;
  const std::string name = kernel;
  (name == "gru_cell"     ? table.gru_cell
   : name == "gru_reset"  ? table.gru_reset
   : name == "gru_output" ? table.gru_output
                          : table.rnn_cell)(args);
}

}  // extern "C"
