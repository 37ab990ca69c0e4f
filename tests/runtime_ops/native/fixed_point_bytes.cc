// The part of kernels.cc for the byte form of the arithmetic "grid32".

#include <cmath>
#include <cstdint>
#include <cstring>

#include "calls.h"
#include "cells/fixed_point/byte_form.h"
#include "export.h"
#include "kernels/dispatch.h"

extern "C" {

struct rnnqc_test_bytes {
  int64_t rows;
  int64_t units;
  int64_t block_begin;
  int64_t block_end;
  const int32_t* acc;
  const float* p;
  const float* h_multiplier;
  const float* bias;
  const rnnqc::GridBytes* form;
  int8_t* c;
  float* const* y;
  uint8_t* h;
};

// A cell without anything that has no byte form; `points` in the order of the attributes grid_*.
struct rnnqc_test_grid {
  int64_t input_size;
  int64_t hidden_size;
  float scale[rnnqc::LstmGrid::kCount];
  int64_t zero_point[rnnqc::LstmGrid::kCount];
  int64_t min[rnnqc::LstmGrid::kCount];
  int64_t max[rnnqc::LstmGrid::kCount];
  int32_t rounding;  // of all
  int64_t table_offset[rnnqc::kGates];
  int32_t input_forget;
  float one;
  const float* gate_table;
  const float* cell_table;
  const float* multiplier;  // [4H], of both products
  const float* bias;        // [4H]
};

RNNQC_EXPORT int64_t rnnqc_test_size_of_byte_form() { return static_cast<int64_t>(sizeof(rnnqc::GridBytes)); }

// Writes the form, aligned to 64 bytes, if there is one.
RNNQC_EXPORT int32_t rnnqc_test_find_byte_form(const char* isa, const rnnqc_test_grid* cell, rnnqc::GridBytes* form) {
  rnnqc::LstmConfig config;
  config.arithmetic = rnnqc::Arithmetic::kGrid32;
  config.hidden_size = cell->hidden_size;
  config.grid.rounded_output = true;
  config.input_forget = cell->input_forget != 0;
  config.one = cell->one;
  const auto rounding = static_cast<rnnqc::GridRounding>(cell->rounding);
  for (int64_t i = 0; i < rnnqc::LstmGrid::kCount; ++i) {
    config.grid.points[i] = {cell->scale[i], cell->zero_point[i], cell->min[i], cell->max[i], rounding, 0};
  }
  for (int gate = 0; gate < rnnqc::kGates; ++gate) {
    config.gates[gate].min = -HUGE_VALF;
    config.gates[gate].max = HUGE_VALF;
    config.gates[gate].table_offset = cell->table_offset[gate];
  }
  rnnqc::CellParameters parameters{};
  parameters.w.k = cell->input_size;
  parameters.r.k = cell->hidden_size;
  parameters.x_multiplier = cell->multiplier;
  parameters.h_multiplier = cell->multiplier;
  parameters.bias = cell->bias;
  rnnqc::GridBytes found{};
  const rnnqc::KernelTable& table = *rnnqc::FindTable(isa);
  if (!rnnqc::FindGridBytes(config, table, parameters, cell->gate_table, cell->cell_table, &found)) return 0;
  std::memcpy(form, &found, sizeof(found));
  return 1;
}

RNNQC_EXPORT void rnnqc_test_grid_bytes(const char* isa, const rnnqc_test_bytes* cell) {
  auto args = rnnqc::StepArgsOf<rnnqc::GridBytesArgs>(*cell);
  args.bias = cell->bias;
  args.form = cell->form;
  args.c = cell->c;
  args.c_stride = args.h_stride;
  rnnqc::FindTable(isa)->grid_bytes(args);
}

}  // extern "C"
