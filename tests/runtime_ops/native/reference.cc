// Scalar triple loops, to be read as the definition of the kernels.

#include <cmath>
#include <cstdint>

#include "kernels/common/codebooks.h"
#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

int32_t WeightS8(const MatmulArgs& m, int64_t k, int64_t column) {
  const int64_t group = (column / kBlockColumns) * (m.k_padded / 4) + k / 4;
  return static_cast<const int8_t*>(m.weights)[(group * kBlockColumns + column % kBlockColumns) * 4 + k % 4];
}

int32_t Multiplied(const MatmulArgs& m, int32_t number, int64_t k, int64_t column) {
  if (m.multipliers == nullptr) return number;
  const int64_t group = column / kBlockColumns * GroupCount(m.k_padded, m.group_size) + k / m.group_size;
  return number * m.multipliers[group * kBlockColumns + column % kBlockColumns];
}

int32_t WeightS4(const MatmulArgs& m, int64_t k, int64_t column) {
  const int64_t block = column / kBlockColumns;
  const int64_t group = block * (m.k_padded / 8) + k / 8;
  const uint8_t byte =
      static_cast<const uint8_t*>(m.weights)[(group * kBlockColumns + column % kBlockColumns) * 4 + k % 4];
  const int32_t half = k % 8 < 4 ? byte & 15 : byte >> 4;
  return Multiplied(m, half < 8 ? half : half - 16, k, column);
}

int32_t WeightOfSet(const MatmulArgs& m, int64_t k, int64_t column) {
  const int64_t group = column / kSetColumns * GroupCount(m.k_padded, kGroupDepth) + k / kGroupDepth;
  const int64_t j = column % kSetColumns;
  const int64_t place = (group * kSetColumns + j % 4 * 2 + j / 4) * 16 + k % 16;
  const uint8_t byte = static_cast<const uint8_t*>(m.weights)[place];
  const uint8_t* record = m.multipliers + group * kSetRecord;
  const int set = j < 4 ? record[8 + j] / kSets : record[8 + j - 4] % kSets;
  const int index = k % kGroupDepth < 16 ? byte & 15 : byte >> 4;
  return record[j] * kSetValues[set][(ZeroOf(set) + index) % kSetSize];
}

int32_t WeightS6(const MatmulArgs& m, int64_t k, int64_t column) {
  const int64_t lines = (column / kBlockColumns * (m.k_padded / 4) + k / 4) * 3;
  const int64_t gate = column % kBlockColumns / kBlockUnits;
  const auto byte = [&](int64_t line) {
    return static_cast<const uint8_t*>(m.weights)[((lines + line) * kBlockUnits + column % kBlockUnits) * 4 + k % 4];
  };
  if (gate == 3) return Multiplied(m, byte(0) % 4 + byte(1) % 4 * 4 + byte(2) % 4 * 16 - 32, k, column);
  const int32_t upper = byte(gate) / 4;
  return Multiplied(m, upper < 32 ? upper : upper - 64, k, column);
}

using WeightFn = int32_t(const MatmulArgs& m, int64_t k, int64_t column);

int32_t Dot(WeightFn* weight, const MatmulArgs& m, int64_t row, int64_t column, int32_t zero_point = 1) {
  int32_t sum = zero_point * m.start[column];
  for (int64_t k = 0; k < m.k_padded; ++k) {
    sum += static_cast<int32_t>(m.a[row * m.a_stride + k]) * weight(m, k, column);
  }
  return sum;
}

void Recurrent(WeightFn* weight, const RecurrentArgs& args) {
  for (int64_t row = 0; row < args.matmul.rows; ++row) {
    for (int64_t j = args.matmul.block_begin * kBlockColumns; j < args.matmul.block_end * kBlockColumns; ++j) {
      args.acc[row * args.acc_stride + j] = Dot(weight, args.matmul, row, j);
    }
  }
}

void Project(WeightFn* weight, const ProjectArgs& args) {
  for (int64_t row = 0; row < args.matmul.rows; ++row) {
    for (int64_t j = args.matmul.block_begin * kBlockColumns; j < args.matmul.block_end * kBlockColumns; ++j) {
      const int32_t zero_point = args.row_zero_point != nullptr ? args.row_zero_point[row] : 1;
      float value = static_cast<float>(Dot(weight, args.matmul, row, j, zero_point));
      if (args.row_scale != nullptr) value = value * args.row_scale[row];
      value = value * args.multiplier[j];
      args.p[row * args.p_stride + j] = value + args.bias[j];
    }
  }
}

uint8_t Code(float x, float scale, int32_t zero_point) {
  const float value = std::nearbyint((std::isnan(x) ? 0.0f : x) / scale) + static_cast<float>(zero_point);
  return static_cast<uint8_t>(value < 0.0f ? 0.0f : value > 255.0f ? 255.0f : value);
}

float Larger(float a, float b) { return a > b ? a : b; }
float Smaller(float a, float b) { return a < b ? a : b; }

float Activate(const Activation& activation, const float* table, float v) {
  const float scaled = activation.alpha * v;
  switch (activation.kind) {
    case Kind::kTable:
      return table[static_cast<int32_t>(v)];
    case Kind::kReluTable: {
      const float middle = static_cast<float>(activation.index_size / 2) + 0.5f;
      const float last = static_cast<float>(activation.index_size) - 0.5f;
      const float position = v * activation.index_scale;
      const float index = Larger(Smaller(position + middle, last), 0.0f);
      return Larger(v, 0.0f) + table[static_cast<int32_t>(index)];
    }
    case Kind::kRelu:
      return Larger(v, 0.0f);
    case Kind::kLeakyRelu:
      return (v < 0 ? scaled : v) + 0.0f;
    case Kind::kThresholdedRelu:
      return (v > activation.alpha ? v : 0.0f) + 0.0f;
    case Kind::kAffine:
      return scaled + activation.beta;
    case Kind::kHardSigmoid:
      return Smaller(Larger(scaled + activation.beta, 0.0f), 1.0f);
    case Kind::kSoftsign:
      return v / (1.0f + std::fabs(v));
  }
  return v;
}

// One unit of one row of HiddenCellArgs.
struct HiddenUnit {
  const HiddenCellArgs& args;
  int64_t row;
  int64_t unit;

  int64_t Column(int64_t gates, int64_t gate) const {
    return (unit / kBlockUnits * gates + gate) * kBlockUnits + unit % kBlockUnits;
  }
  float A(int64_t gates, int64_t gate) const {
    const int64_t j = Column(gates, gate);
    const HiddenCellOptions* options = args.options;
    if (options != nullptr && options->products != nullptr) return options->products[row * args.acc_stride + j];
    float sum = static_cast<float>(args.acc[row * args.acc_stride + j]);
    if (options != nullptr && options->row_scale != nullptr) sum = sum * options->row_scale[row];
    return sum * args.h_multiplier[j];
  }
  float P(int64_t gates, int64_t gate) const { return args.p[row * args.p_stride + Column(gates, gate)]; }
  float Look(int64_t gate, float v) const {
    const float limited = Larger(Smaller(v, args.gate_max[gate]), args.gate_min[gate]);
    if (args.options == nullptr) return args.gate_table[gate][static_cast<int32_t>(limited)];
    return Activate(args.options->gates[gate], args.gate_table[gate], limited);
  }
  float* State() const { return args.state + row * args.state_stride + unit; }
  float* Z() const { return args.z + row * args.state_stride + unit; }
  void WriteCode(float value) const {
    if (args.h == nullptr) return;
    args.h[row * args.h_stride + unit] = Code(value, args.h_scale, args.h_zero_point);
  }
  void Write(float y) const {
    if (unit < args.units) args.y[row][unit] = y;
    WriteCode(y);
  }
  void WriteState(float z, float n) const {
    const float rest = 1.0f - z;
    const float added = rest * n;
    const float kept = z * *State();
    *State() = Larger(Smaller(added + kept, 0x1p60f), -0x1p60f);
    Write(*State());
  }
};

template <typename Visit>
void ForEachUnit(const HiddenCellArgs& args, const Visit& visit) {
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t unit = args.block_begin * kBlockUnits; unit < args.block_end * kBlockUnits; ++unit) {
      visit(HiddenUnit{args, row, unit});
    }
  }
}

}  // namespace

float f32_max_abs__reference(const float* x, int64_t n) {
  float m = 0.0f;
  for (int64_t i = 0; i < n; ++i) m = std::fabs(x[i]) > m ? std::fabs(x[i]) : m;
  return m;
}

MinMax f32_min_max__reference(const float* x, int64_t n) {
  MinMax range{0.0f, 0.0f};
  for (int64_t i = 0; i < n; ++i) {
    range.min = x[i] < range.min ? x[i] : range.min;
    range.max = x[i] > range.max ? x[i] : range.max;
  }
  return range;
}

void f32_u8_quantize_row__reference(const float* x, int64_t n, float scale, int32_t zero_point, uint8_t* codes) {
  for (int64_t i = 0; i < n; ++i) codes[i] = Code(x[i], scale, zero_point);
}

void f32_u16_quantize_row__reference(const float* x, int64_t n, float scale, int32_t zero_point, uint8_t* high,
                                     uint8_t* low) {
  for (int64_t i = 0; i < n; ++i) {
    const float value = std::nearbyint((std::isnan(x[i]) ? 0.0f : x[i]) / scale) + static_cast<float>(zero_point);
    const int32_t code = static_cast<int32_t>(value < 0.0f ? 0.0f : value > 65535.0f ? 65535.0f : value);
    high[i] = static_cast<uint8_t>(code >> 8);
    low[i] = static_cast<uint8_t>(code & 255);
  }
}

void s32_f32_join__reference(const JoinArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    const int32_t* high = args.acc + 2 * row * args.acc_stride;
    const int32_t* low = high + args.acc_stride;
    const int32_t* z = args.zero_point + 2 * row;
    for (int64_t j = args.block_begin * kBlockColumns; j < args.block_end * kBlockColumns; ++j) {
      const float upper = static_cast<float>(high[j] + z[0] * args.start[j]) * 256.0f;
      float value = upper + static_cast<float>(low[j] + z[1] * args.start[j]);
      if (args.row_scale != nullptr) value = value * args.row_scale[row];
      value = value * args.multiplier[j];
      args.p[row * args.p_stride + j] = value + args.bias[row * args.bias_stride + j];
    }
  }
}

void u8s8_s32_recurrent_1x1__reference(const RecurrentArgs& args) { Recurrent(WeightS8, args); }
void u8s4_s32_recurrent_1x1__reference(const RecurrentArgs& args) { Recurrent(WeightS4, args); }
void u8s8_f32_project_1x1__reference(const ProjectArgs& args) { Project(WeightS8, args); }
void u8s4_f32_project_1x1__reference(const ProjectArgs& args) { Project(WeightS4, args); }
void u8s4_s32_recurrent_sets_1x1__reference(const RecurrentArgs& args) { Recurrent(WeightOfSet, args); }
void u8s4_f32_project_sets_1x1__reference(const ProjectArgs& args) { Project(WeightOfSet, args); }
void u8s6_s32_recurrent_1x1__reference(const RecurrentArgs& args) { Recurrent(WeightS6, args); }
void u8s6_f32_project_1x1__reference(const ProjectArgs& args) { Project(WeightS6, args); }

namespace {

// The entry of a gate of one unit, whose peephole, if any, sees `seen`.
float GateEntry(const TableCellArgs& args, int64_t row, int64_t unit, int64_t gate, const float* seen) {
  const int64_t j = (unit / kBlockUnits) * kBlockColumns + gate * kBlockUnits + unit % kBlockUnits;
  const float product = static_cast<float>(args.acc[row * args.acc_stride + j]) * args.h_multiplier[j];
  float v = product + args.p[row * args.p_stride + j];
  if (seen != nullptr) {
    const float term = args.peephole[j] * *seen;
    v = v + term;
  }
  const float limited = std::fmax(std::fmin(v, args.gate_max[gate]), args.gate_min[gate]);
  return args.gate_table[gate][static_cast<int32_t>(limited)];
}

void TableCell(const TableCellArgs& args, bool peepholes) {
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t unit = args.block_begin * kBlockUnits; unit < args.block_end * kBlockUnits; ++unit) {
      float* c = args.c + row * args.c_stride + unit;
      const float* seen = peepholes ? c : nullptr;
      const float kept = GateEntry(args, row, unit, 2, seen) * *c;
      const float added = GateEntry(args, row, unit, 0, seen) * GateEntry(args, row, unit, 3, nullptr);
      const bool whole = args.cell_index_scale == 0.0f;
      const float next = whole ? std::nearbyint(kept + added) : kept + added;
      *c = std::fmax(std::fmin(next, args.cell_max), -args.cell_max);
      const float half = static_cast<float>(args.cell_table_size / 2);
      const float steps = whole ? *c : std::nearbyint(*c * args.cell_index_scale);
      const int32_t code = static_cast<int32_t>(std::fmax(std::fmin(steps, half - 1.0f), -half));
      const float entry = args.cell_table[code < 0 ? code + args.cell_table_size : code];
      const float y = GateEntry(args, row, unit, 1, seen) * entry;
      if (unit < args.units) args.y[row][unit] = y;
      args.h[row * args.h_stride + unit] = Code(y, args.h_scale, args.h_zero_point);
    }
  }
}

}  // namespace

void s32_table_cell_1__reference(const TableCellArgs& args) { TableCell(args, false); }
void s32_peephole_cell_1__reference(const TableCellArgs& args) { TableCell(args, true); }

namespace {

int8_t Limited(float units, const ByteRange& range) {
  const float rounded = std::nearbyint(units);
  const float low = range.low;
  const float high = range.high;
  return static_cast<int8_t>(rounded < low ? low : rounded > high ? high : rounded);
}

int8_t Scaled(uint8_t u8, int8_t s8, float ratio, const ByteRange& range) {
  return Limited(static_cast<float>(u8 * s8) * ratio, range);
}

}  // namespace

void s32_grid_bytes_1__reference(const GridBytesArgs& args) {
  const GridBytes& form = *args.form;
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t unit = args.block_begin * kBlockUnits; unit < args.block_end * kBlockUnits; ++unit) {
      uint8_t index[kGates];
      for (int64_t g = 0; g < kGates; ++g) {
        const int64_t j = (unit / kBlockUnits) * kBlockColumns + g * kBlockUnits + unit % kBlockUnits;
        const float product = static_cast<float>(args.acc[row * args.acc_stride + j]) * args.h_multiplier[j];
        const float sum = product + args.p[row * args.p_stride + j];
        const float v = sum + args.bias[j];
        const float last = v * form.rest[g];
        index[g] = static_cast<uint8_t>(Limited(std::fma(v, form.inverse[g], last), form.gate[g]));
      }
      if (form.input_forget) index[2] = index[0];
      const uint8_t i = form.gate_codes[0][index[0]];
      const uint8_t o = form.gate_codes[1][index[1]];
      const uint8_t f = form.gate_codes[2][index[2]];
      const int8_t d = static_cast<int8_t>(form.gate_codes[3][index[3]]);
      int8_t* c = args.c + row * args.c_stride + unit;
      const int8_t kept = Scaled(f, *c, form.kept_ratio, form.kept);
      const int8_t added = Scaled(i, d, form.added_ratio, form.added);
      *c = Limited(static_cast<float>(kept + added), form.cell);
      const int8_t squashed = static_cast<int8_t>(form.cell_codes[static_cast<uint8_t>(*c)]);
      const int8_t multiple = Scaled(o, squashed, form.hidden_ratio, form.hidden);
      if (unit < args.units) args.y[row][unit] = static_cast<float>(multiple) * form.h_scale;
      args.h[row * args.h_stride + unit] = static_cast<uint8_t>(multiple + form.h_zero_point);
    }
  }
}

void s32_gru_cell_1__reference(const HiddenCellArgs& args) {
  ForEachUnit(args, [&args](const HiddenUnit& unit) {
    const float z = unit.Look(0, unit.A(3, 0) + unit.P(3, 0));
    const float r = unit.Look(1, unit.A(3, 1) + unit.P(3, 1));
    const float hidden = r * (unit.A(3, 2) + args.hidden_bias[unit.unit]);
    unit.WriteState(z, unit.Look(2, hidden + unit.P(3, 2)));
  });
}

void s32_gru_reset_1__reference(const HiddenCellArgs& args) {
  ForEachUnit(args, [&args](const HiddenUnit& unit) {
    *unit.Z() = unit.Look(0, unit.A(2, 0) + unit.P(3, 0));
    const float r = unit.Look(1, unit.A(2, 1) + unit.P(3, 1));
    const float reset = r * *unit.State();
    unit.WriteCode(reset);
    if (args.h == nullptr) args.options->reset[unit.row * args.state_stride + unit.unit] = reset;
  });
}

void s32_gru_output_1__reference(const HiddenCellArgs& args) {
  ForEachUnit(args,
              [](const HiddenUnit& unit) { unit.WriteState(*unit.Z(), unit.Look(2, unit.A(1, 0) + unit.P(3, 2))); });
}

void s32_rnn_cell_1__reference(const HiddenCellArgs& args) {
  ForEachUnit(args, [](const HiddenUnit& unit) { unit.Write(unit.Look(0, unit.A(1, 0) + unit.P(1, 0))); });
}

}  // namespace rnnqc
