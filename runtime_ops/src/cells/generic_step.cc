#include "cells/generic_step.h"

#include <cmath>
#include <cstring>

#include "cells/activations.h"
#include "kernels/rounding.h"

namespace rnnqc {
namespace {

float LimitCell(const LstmConfig& config, float u) {
  if (!config.cell_is_quantized()) return Limit(u, -kLargestMagnitude, kLargestMagnitude);
  return RoundEven(Limit(u, -config.cell_max, config.cell_max));
}

float CellTableValue(const GenericStepArgs& args, float k) {
  const int64_t code = static_cast<int64_t>(k);
  return args.cell_table[code < 0 ? code + args.cell_table_size : code];
}

float CellCode(const LstmConfig& config, const GenericStepArgs& args, float c) {
  const float half = static_cast<float>(args.cell_table_size / 2);
  const float scaled = config.cell_is_quantized() ? c : c * config.cell_index_scale;
  return RoundEven(Limit(scaled, -half, half - 1.0f));
}

float ActivateOutput(const LstmConfig& config, const GenericStepArgs& args, float c) {
  if (config.output_kind == Kind::kTable) {
    return CellTableValue(args, CellCode(config, args, c));
  }
  if (config.output_kind == Kind::kReluTable) return Relu(c) + CellTableValue(args, CellCode(config, args, c));
  const float real = config.cell_is_quantized() ? c * config.cell_scale : c;
  return Evaluate(config.output_kind, config.output_alpha, config.output_beta, real);
}

float PreActivation(const GenericStepArgs& args, int64_t column) { return args.products[column] + args.p[column]; }

float AddPeephole(const GenericStepArgs& args, int64_t column, float g, float c) {
  if (args.peephole == nullptr) return g;
  const float term = args.peephole[column] * c;
  return g + term;
}

}  // namespace

void InitialCells(const LstmConfig& config, const float* values, int64_t units, float* cells) {
  const bool quantized = config.cell_is_quantized();
  const float scale = quantized ? config.cell_scale : 1.0f;
  const float inverse = 1.0f / scale;
  const float largest = quantized ? config.cell_max : kLargestMagnitude;
  int exponent;
  // Multiplying by the inverse of a power of two is dividing by it, in much less time.
  const bool exact = std::frexp(scale, &exponent) == 0.5f && std::isnormal(inverse);
  const auto real = [values](int64_t unit) { return values[unit] == values[unit] ? values[unit] + 0.0f : 0.0f; };
  if (exact) {
    for (int64_t unit = 0; unit < units; ++unit) cells[unit] = Limit(real(unit) * inverse, -largest, largest);
  } else {
    for (int64_t unit = 0; unit < units; ++unit) cells[unit] = Limit(real(unit) / scale, -largest, largest);
  }
  if (!quantized) return;
  for (int64_t unit = 0; unit < units; ++unit) cells[unit] = RoundEven(cells[unit]);
}

void GenericStep(const LstmConfig& config, const GenericStepArgs& args) {
  for (int64_t unit = 0; unit < args.units; ++unit) {
    const int64_t input = (unit / kBlockUnits) * kBlockColumns + unit % kBlockUnits;
    const int64_t output = input + kOutputGate * kBlockUnits;
    const int64_t forget = input + kForgetGate * kBlockUnits;
    const int64_t cell = input + kCellGate * kBlockUnits;
    const float c = args.c[unit];

    const float i = ActivateGate(config.gates[kInputGate], args.gate_table,
                                 AddPeephole(args, input, PreActivation(args, input), c));
    const float f = config.input_forget ? config.one - i
                                        : ActivateGate(config.gates[kForgetGate], args.gate_table,
                                                       AddPeephole(args, forget, PreActivation(args, forget), c));
    const float d = ActivateGate(config.gates[kCellGate], args.gate_table, PreActivation(args, cell));
    const float kept = f * c;
    const float added = i * d;
    const float next = LimitCell(config, kept + added);
    const float o = ActivateGate(config.gates[kOutputGate], args.gate_table,
                                 AddPeephole(args, output, PreActivation(args, output), next));
    args.c[unit] = next;
    args.y[unit] = o * ActivateOutput(config, args, next);
  }
}

}  // namespace rnnqc
