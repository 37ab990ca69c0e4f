#include "cells/lstm/generic_step.h"

#include <algorithm>
#include <cmath>

#include "cells/driver/activations.h"
#include "kernels/common/rounding.h"

namespace rnnqc {
namespace {

template <typename Value>
void ForEachUnit(const Value& value) {
  for (int64_t unit = 0; unit < kBlockUnits; ++unit) value(unit);
}

void LimitCells(const LstmConfig& config, BlockFloats& u) {
  if (config.cell_is_quantized()) {
    const float largest = config.cell_max;
    ForEachUnit([&](int64_t unit) { u[unit] = RoundEven(Limit(u[unit], -largest, largest)); });
  } else {
    ForEachUnit([&](int64_t unit) { u[unit] = Limit(u[unit], -kLargestMagnitude, kLargestMagnitude); });
  }
}

// Entries of the cell's table, whose negative codes stand behind the others.
void CellTableValues(const LstmConfig& config, const GenericStepArgs& args, const BlockFloats& c, BlockFloats& values) {
  const int32_t size = static_cast<int32_t>(args.cell_table_size);
  const float half = static_cast<float>(size / 2);
  const float scale = config.cell_is_quantized() ? 1.0f : config.cell_index_scale;
  int32_t index[kBlockUnits];
  ForEachUnit([&](int64_t unit) {
    const int32_t code = static_cast<int32_t>(RoundEven(Limit(c[unit] * scale, -half, half - 1.0f)));
    index[unit] = code < 0 ? code + size : code;
  });
  ForEachUnit([&](int64_t unit) { values[unit] = args.cell_table[index[unit]]; });
}

void ActivateOutput(const LstmConfig& config, const GenericStepArgs& args, const BlockFloats& c, BlockFloats& values) {
  if (config.output_kind == Kind::kTable) return CellTableValues(config, args, c, values);
  if (config.output_kind == Kind::kReluTable) {
    BlockFloats positive;
    ForEachUnit([&](int64_t unit) { positive[unit] = c[unit]; });
    Relu(positive);
    CellTableValues(config, args, c, values);
    return ForEachUnit([&](int64_t unit) { values[unit] = positive[unit] + values[unit]; });
  }
  const float scale = config.cell_is_quantized() ? config.cell_scale : 1.0f;
  ForEachUnit([&](int64_t unit) { values[unit] = c[unit] * scale; });
  Evaluate(config.output_kind, config.output_alpha, config.output_beta, values);
}

// Values of a gate whose columns begin at `block`; `c` is the state for its peephole, or null.
void GateValues(const LstmConfig& config, const GenericStepArgs& args, int gate, int64_t block, const float* c,
                BlockFloats& g) {
  const int64_t column = block * kBlockColumns + gate * kBlockUnits;
  const int32_t* acc = args.products.acc + column;
  const float* multiplier = args.products.multiplier + column;
  const float* p = args.p + column;
  const float row_scale = args.products.row_scale == nullptr ? 1.0f : *args.products.row_scale;
  ForEachUnit([&](int64_t unit) {
    const float scaled = static_cast<float>(acc[unit]) * row_scale;
    const float product = scaled * multiplier[unit];
    g[unit] = product + p[unit];
  });
  if (args.peephole != nullptr && c != nullptr) {
    const float* peephole = args.peephole + column;
    ForEachUnit([&](int64_t unit) {
      const float term = peephole[unit] * c[unit];
      g[unit] = g[unit] + term;
    });
  }
  ActivateGate(config.gates[gate], args.gate_table, g);
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
  BlockFloats i, f, d, o, next, output;
  for (int64_t block = 0; block * kBlockUnits < args.units; ++block) {
    float* c = args.c + block * kBlockUnits;
    GateValues(config, args, kInputGate, block, c, i);
    if (config.input_forget) {
      ForEachUnit([&](int64_t unit) { f[unit] = config.one - i[unit]; });
    } else {
      GateValues(config, args, kForgetGate, block, c, f);
    }
    GateValues(config, args, kCellGate, block, nullptr, d);
    ForEachUnit([&](int64_t unit) {
      const float kept = f[unit] * c[unit];
      const float added = i[unit] * d[unit];
      next[unit] = kept + added;
    });
    LimitCells(config, next);
    GateValues(config, args, kOutputGate, block, next, o);
    ActivateOutput(config, args, next, output);
    ForEachUnit([&](int64_t unit) {
      c[unit] = next[unit];
      output[unit] = o[unit] * output[unit];
    });
    const int64_t left = args.units - block * kBlockUnits;
    std::copy(output, output + std::min(left, kBlockUnits), args.y + block * kBlockUnits);
  }
}

}  // namespace rnnqc
