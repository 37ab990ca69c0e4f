#include "cells/activations.h"

#include <cmath>

#include "kernels/rounding.h"

namespace rnnqc {
namespace {

float TableIndexOfReluTable(float v, float index_scale, int64_t index_size) {
  const float scaled = v * index_scale;
  const float centre = static_cast<float>(index_size / 2) + 0.5f;
  return Limit(scaled + centre, 0.0f, static_cast<float>(index_size) - 0.5f);
}

}  // namespace

float Relu(float v) { return v > 0 ? v : 0.0f; }

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

}  // namespace rnnqc
