#include "cells/driver/activations.h"

#include <cmath>
#include <cstdint>

#include "kernels/common/rounding.h"

namespace rnnqc {
namespace {

template <typename Value>
void ForEach(BlockFloats& v, const Value& value) {
  for (int64_t unit = 0; unit < kBlockUnits; ++unit) v[unit] = value(v[unit]);
}

// Replaces limited indices, which may be fractions, by their table entries.
void LookUp(const float* table, BlockFloats& index) {
  int32_t whole[kBlockUnits];
  for (int64_t unit = 0; unit < kBlockUnits; ++unit) whole[unit] = static_cast<int32_t>(index[unit]);
  for (int64_t unit = 0; unit < kBlockUnits; ++unit) index[unit] = table[whole[unit]];
}

float Positive(float v) { return v > 0 ? v : 0.0f; }

void ReluTable(const GateConfig& gate, const float* table, BlockFloats& v) {
  const float centre = static_cast<float>(gate.index_size / 2) + 0.5f;
  const float largest = static_cast<float>(gate.index_size) - 0.5f;
  BlockFloats rest;
  for (int64_t unit = 0; unit < kBlockUnits; ++unit) {
    const float scaled = v[unit] * gate.index_scale;
    rest[unit] = Limit(scaled + centre, 0.0f, largest);
  }
  LookUp(table, rest);
  for (int64_t unit = 0; unit < kBlockUnits; ++unit) v[unit] = Positive(v[unit]) + rest[unit];
}

}  // namespace

void Relu(BlockFloats& v) { ForEach(v, Positive); }

void Evaluate(Kind kind, float alpha, float beta, BlockFloats& v) {
  switch (kind) {
    case Kind::kRelu:
      return Relu(v);
    case Kind::kLeakyRelu:
      return ForEach(v, [alpha](float x) {
        const float scaled = alpha * x;
        return (x < 0 ? scaled : x) + 0.0f;
      });
    case Kind::kThresholdedRelu:
      return ForEach(v, [alpha](float x) { return (x > alpha ? x : 0.0f) + 0.0f; });
    case Kind::kAffine:
      return ForEach(v, [alpha, beta](float x) {
        const float scaled = alpha * x;
        return scaled + beta;
      });
    case Kind::kHardSigmoid:
      return ForEach(v, [alpha, beta](float x) {
        const float scaled = alpha * x;
        const float w = Positive(scaled + beta);
        return w < 1 ? w : 1.0f;
      });
    case Kind::kSoftsign:
      return ForEach(v, [](float x) { return x / (1.0f + std::fabs(x)); });
    case Kind::kTable:
    case Kind::kReluTable:
      break;
  }
}

void ActivateGate(const GateConfig& gate, const float* table, BlockFloats& g) {
  const float min = gate.min;
  const float max = gate.max;
  ForEach(g, [min, max](float x) { return Limit(x, min, max); });
  if (gate.kind == Kind::kTable) return LookUp(table + gate.table_offset, g);
  if (gate.kind == Kind::kReluTable) return ReluTable(gate, table + gate.table_offset, g);
  Evaluate(gate.kind, gate.alpha, gate.beta, g);
}

}  // namespace rnnqc
