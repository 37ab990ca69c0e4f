#include "cells/generic_step.h"

#include <cmath>
#include <cstring>

#include "kernels/rounding.h"

namespace rnnqc {
namespace {

constexpr float kFloatCellLimit = 1152921504606846976.0f;  // 2^60

float Relu(float v) { return v > 0 ? v : 0.0f; }

float TableIndexOfReluTable(float v, float index_scale, int64_t index_size) {
  const float scaled = v * index_scale;
  const float centre = static_cast<float>(index_size / 2) + 0.5f;
  return Limit(scaled + centre, 0.0f, static_cast<float>(index_size) - 0.5f);
}

// The kinds that need no table.
float Evaluate(Kind kind, float alpha, float beta, float v) {
  switch (kind) {
    case Kind::kRelu:
      return Relu(v);
    case Kind::kLeakyRelu:
      return (v < 0 ? alpha * v : v) + 0.0f;
    case Kind::kThresholdedRelu:
      return (v > alpha ? v : 0.0f) + 0.0f;
    case Kind::kAffine: {
      const float scaled = alpha * v;
      return scaled + beta;
    }
    case Kind::kHardSigmoid: {
      const float scaled = alpha * v;
      const float w = Relu(scaled + beta);
      return w < 1 ? w : 1.0f;
    }
    case Kind::kSoftsign:
      return v / (1.0f + std::fabs(v));
    case Kind::kTable:
    case Kind::kReluTable:
      break;
  }
  return v;
}

float ActivateGate(const GateConfig& gate, const float* table, float g) {
  const float v = Limit(g, gate.min, gate.max);
  if (gate.kind == Kind::kTable) return table[gate.table_offset + static_cast<int64_t>(v)];
  if (gate.kind == Kind::kReluTable) {
    const float index = TableIndexOfReluTable(v, gate.index_scale, gate.index_size);
    return Relu(v) + table[gate.table_offset + static_cast<int64_t>(index)];
  }
  return Evaluate(gate.kind, gate.alpha, gate.beta, v);
}

float LimitCell(const LstmConfig& config, float u) {
  if (!config.cell_is_quantized()) return Limit(u, -kFloatCellLimit, kFloatCellLimit);
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

float PreActivation(const GenericStepArgs& args, int64_t column) {
  float g = static_cast<float>(args.acc[column]);
  if (args.h_row_scale != nullptr) g = g * *args.h_row_scale;
  g = g * args.h_multiplier[column];
  return g + args.p[column];
}

float AddPeephole(const GenericStepArgs& args, int64_t column, float g, float c) {
  if (args.peephole == nullptr) return g;
  const float term = args.peephole[column] * c;
  return g + term;
}

}  // namespace

void InitialCells(const LstmConfig& config, const float* values, int64_t units, float* cells) {
  const bool quantized = config.cell_is_quantized();
  const float scale = quantized ? config.cell_scale : 1.0f;
  const float largest = quantized ? config.cell_max : kFloatCellLimit;
  for (int64_t unit = 0; unit < units; ++unit) {
    const float real = values[unit] == values[unit] ? values[unit] + 0.0f : 0.0f;
    cells[unit] = Limit(real / scale, -largest, largest);
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
