// The part of the ABI of kernels.cc for the elementwise kernels of the arithmetic "grid" in binary64.

#include "kernels/common/fixed_point/fixed_point.h"

#include <cmath>
#include <cstdint>
#include <string>

#include "cells/fixed_point/config.h"
#include "export.h"

extern "C" {

// Whether two instruction sets have the same kernels of the steps of the grid arithmetics.
RNNQC_EXPORT int32_t rnnqc_test_same_grid_kernels(const char* isa, const char* other) {
  return &rnnqc::SelectGridKernels<double>(isa) == &rnnqc::SelectGridKernels<double>(other) ? 1 : 0;
}

// An entry of the attributes grid_*.
struct rnnqc_test_point {
  float scale;
  int32_t rounding;
  int64_t zero_point;
  int64_t min;
  int64_t max;
  int64_t offset;
};

struct rnnqc_test_join {
  int64_t blocks;
  int64_t gates;
  int64_t planes;
  const int32_t* acc[4];
  double factor[4];
  const double* start;
  const double* zero_point;
  double row_sum;
  int32_t saturates;
  double saturation_low;
  double saturation_high;
  const double* multiplier;
  const double* bias;
  rnnqc_test_point quantizer[4];
  double* out;
};

struct rnnqc_test_grid_cell {
  int64_t units;  // whole blocks
  int64_t gates;
  const double* p;
  double* g;
  double gate_min[4];
  double gate_max[4];
  rnnqc_test_point acc[4];
  const float* gate_table[4];  // the entry of the lowest code
  rnnqc_test_point hidden;
  double* scratch;
  float* y;
  uint8_t* high;
  uint8_t* low;
  const double* hidden_bias;
  rnnqc_test_point reset;
  uint8_t* reset_high;
  uint8_t* reset_low;
  rnnqc_test_point kept;
  rnnqc_test_point added;
  rnnqc_test_point state;
  double largest_state;
};

static rnnqc::GridPoint PointOf(const rnnqc_test_point& point) {
  const auto rounding = static_cast<rnnqc::GridRounding>(point.rounding);
  return {point.scale, point.zero_point, point.min, point.max, rounding, point.offset};
}

static rnnqc::GridQuantizer<double> QuantizerOf(const rnnqc_test_point& point) {
  return rnnqc::Quantizer<double>(PointOf(point));
}

RNNQC_EXPORT void rnnqc_test_grid_join(const char* isa, const rnnqc_test_join* call) {
  rnnqc::GridQuantizer<double> quantizers[4];
  rnnqc::GridJoinArgs<double> args{};
  args.blocks = call->blocks;
  args.gates = call->gates;
  args.planes = call->planes;
  for (int64_t plane = 0; plane < call->planes; ++plane) {
    args.acc[plane] = call->acc[plane];
    args.factor[plane] = call->factor[plane];
  }
  for (int64_t gate = 0; gate < call->gates; ++gate) quantizers[gate] = QuantizerOf(call->quantizer[gate]);
  args.start = call->start;
  args.zero_point = call->zero_point;
  args.row_sum = call->row_sum;
  args.saturates = call->saturates != 0;
  args.saturation_low = call->saturation_low;
  args.saturation_high = call->saturation_high;
  args.multiplier = call->multiplier;
  args.bias = call->bias;
  args.quantizer = quantizers;
  args.out = call->out;
  rnnqc::SelectGridKernels<double>(isa).join(args);
}

// `kernel`: gru_gates, gru_output or rnn_step.
RNNQC_EXPORT void rnnqc_test_grid_step(const char* isa, const char* kernel, const rnnqc_test_grid_cell* call) {
  rnnqc::GridGruArgs args{};
  args.units = call->units;
  args.p = call->p;
  args.g = call->g;
  for (int64_t gate = 0; gate < call->gates; ++gate) {
    args.gate_min[gate] = call->gate_min[gate];
    args.gate_max[gate] = call->gate_max[gate];
    args.acc[gate] = QuantizerOf(call->acc[gate]);
    args.gate_table[gate] = call->gate_table[gate] - PointOf(call->acc[gate]).low();
    args.limited = args.limited || std::isfinite(call->gate_min[gate]) || std::isfinite(call->gate_max[gate]);
  }
  args.hidden = QuantizerOf(call->hidden);
  args.hidden_zero_point = static_cast<int32_t>(call->hidden.zero_point);
  args.scratch = call->scratch;
  args.y = call->y;
  args.high = call->high;
  args.low = call->low;
  args.hidden_bias = call->hidden_bias;
  args.reset = QuantizerOf(call->reset);
  args.reset_zero_point = static_cast<int32_t>(call->reset.zero_point);
  args.reset_high = call->reset_high;
  args.reset_low = call->reset_low;
  args.kept = QuantizerOf(call->kept);
  args.added = QuantizerOf(call->added);
  args.state = QuantizerOf(call->state);
  args.largest_state = call->largest_state;
  const rnnqc::GridKernels<double>& kernels = rnnqc::SelectGridKernels<double>(isa);
  const std::string name = kernel;
  if (name == "rnn_step") return kernels.rnn_step(args);
  (name == "gru_gates" ? kernels.gru_gates : kernels.gru_output)(args);
}

}  // extern "C"
