#ifndef RNNQC_CELLS_ACTIVATIONS_H_
#define RNNQC_CELLS_ACTIVATIONS_H_

#include <cstdint>

#include "cells/cell_config.h"

namespace rnnqc {

constexpr float kLargestMagnitude = 0x1p60f;

float Relu(float v);

// The kinds that need no table.
float Evaluate(Kind kind, float alpha, float beta, float v);

// A gate's value; `table` is the whole gate_table.
float ActivateGate(const GateConfig& gate, const float* table, float g);

// Products of one row's hidden codes in pre-activation units, in block order.
struct HiddenProducts {
  const int32_t* acc;
  const float* joined;     // of 16-bit codes, in place of all others; else null
  const float* row_scale;  // scale of the row's codes for h_mode dynamic_row, else null
  const float* multiplier;

  float operator[](int64_t column) const {
    if (joined != nullptr) return joined[column];
    float u = static_cast<float>(acc[column]);
    if (row_scale != nullptr) u = u * *row_scale;
    return u * multiplier[column];
  }
};

}  // namespace rnnqc

#endif  // RNNQC_CELLS_ACTIVATIONS_H_
