#include "ops/cell_attributes.h"

#include <stdexcept>

#include "ops/packed_weights.h"

namespace rnnqc {
namespace {

const Choices<Direction>& Directions() {
  static const Choices<Direction> choices = {{"forward", Direction::kForward}, {"reverse", Direction::kReverse}};
  return choices;
}

const Choices<CodeMode>& InputModes() {
  static const Choices<CodeMode> choices = {{"dynamic_row", CodeMode::kDynamicRow},
                                            {"static", CodeMode::kStatic},
                                            {"codes", CodeMode::kCodes},
                                            {"row_codes", CodeMode::kRowCodes}};
  return choices;
}

const Choices<CodeMode>& HiddenModes() {
  static const Choices<CodeMode> choices = {{"static", CodeMode::kStatic}, {"dynamic_row", CodeMode::kDynamicRow}};
  return choices;
}

// Attributes common to GRU and RNN; `points` quantizers.
void ReadHiddenCell(const ort::KernelInfo& info, int64_t points, const char* gate_names, CellConfig* config) {
  static const Choices<Arithmetic> choices = {{"tables", Arithmetic::kTables}, {"grid", Arithmetic::kGrid}};
  ReadChoice(info, "arithmetic", choices, &config->arithmetic);
  ReadCell(info, config);
  if (config->is_grid()) return ReadGrid(info, points, gate_names, config);
  ReadCodes(info, config);
  ReadGates(info, gate_names, config);
}

}  // namespace

const Choices<Kind>& Kinds() {
  static const Choices<Kind> choices = {{"table", Kind::kTable},
                                        {"relu_table", Kind::kReluTable},
                                        {"Relu", Kind::kRelu},
                                        {"LeakyRelu", Kind::kLeakyRelu},
                                        {"ThresholdedRelu", Kind::kThresholdedRelu},
                                        {"Affine", Kind::kAffine},
                                        {"HardSigmoid", Kind::kHardSigmoid},
                                        {"Softsign", Kind::kSoftsign}};
  return choices;
}

void ReadInputMode(const ort::KernelInfo& info, CodeMode* mode) { ReadChoice(info, "x_mode", InputModes(), mode); }

bool ReadFlag(const ort::KernelInfo& info, const char* name) {
  int64_t value = 0;
  info.Read(name, &value);
  if (value != 0 && value != 1) {
    throw std::invalid_argument("attribute " + std::string(name) + " is " + std::to_string(value) +
                                ", expected 0 or 1");
  }
  return value == 1;
}

void FailMissing(const char* name) {
  throw std::invalid_argument("the attribute " + std::string(name) + " is missing");
}

void CheckCount(const char* name, size_t found, size_t expected, const std::string& words) {
  if (found == expected) return;
  throw std::invalid_argument("attribute " + std::string(name) + " has " + std::to_string(found) +
                              " elements, expected " + std::to_string(expected) + " (" + words + ")");
}

std::vector<std::string> SplitAtCommas(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

void ReadCell(const ort::KernelInfo& info, CellConfig* config) {
  if (!info.Read("hidden_size", &config->hidden_size)) FailMissing("hidden_size");
  ReadChoice(info, "direction", Directions(), &config->direction);
  ReadInputMode(info, &config->x_mode);
  config->y_direction_axis = ReadFlag(info, "y_direction_axis");
  config->state_direction_axis = ReadFlag(info, "state_direction_axis");
  info.Read("w_group_size", &config->w_group_size);
  info.Read("r_group_size", &config->r_group_size);
  info.Read("w_bits", &config->w_bits);
  info.Read("r_bits", &config->r_bits);
  CheckPackedBits("w_bits", config->w_bits);
  CheckPackedBits("r_bits", config->r_bits);
  info.Read("w_codebook", &config->w_codebook);
  info.Read("r_codebook", &config->r_codebook);
  CheckCodebook("w_codebook", config->w_codebook, config->w_bits, config->w_group_size);
  CheckCodebook("r_codebook", config->r_codebook, config->r_bits, config->r_group_size);
  info.Read("w_wide_columns", &config->w_wide_columns);
  info.Read("r_wide_columns", &config->r_wide_columns);
  CheckWideColumns("w_wide_columns", config->w_wide_columns, config->w_group_size);
  CheckWideColumns("r_wide_columns", config->r_wide_columns, config->r_group_size);
}

void ReadCodes(const ort::KernelInfo& info, CellConfig* config) {
  info.Read("x_scale", &config->x_scale);
  info.Read("x_zero_point", &config->x_zero_point);
  ReadChoice(info, "h_mode", HiddenModes(), &config->h_mode);
  info.Read("h_scale", &config->h_scale);
  info.Read("h_zero_point", &config->h_zero_point);
  info.Read("h_bound", &config->h_bound);
  info.Read("x_bits", &config->x_bits);
  info.Read("h_bits", &config->h_bits);
}

void ReadGates(const ort::KernelInfo& info, const char* gate_names, CellConfig* config) {
  static const char* const counts[] = {"no", "one kind", "two kinds", "three kinds", "four kinds"};
  const int64_t count = config->gate_count;
  std::string kinds_text = "table";
  for (int64_t g = 1; g < count; ++g) kinds_text += ",table";
  info.Read("gate_kinds", &kinds_text);
  const std::vector<std::string> kinds = SplitAtCommas(kinds_text);
  if (kinds.size() != static_cast<size_t>(count)) {
    throw std::invalid_argument("attribute gate_kinds is \"" + kinds_text + "\", expected " + counts[count] +
                                " separated by commas (gates " + gate_names + ")");
  }
  const auto min = ReadPerGate<float>(info, "gate_min", count, gate_names, true);
  const auto max = ReadPerGate<float>(info, "gate_max", count, gate_names, true);
  const auto alpha = ReadPerGate<float>(info, "gate_alpha", count, gate_names, false);
  const auto beta = ReadPerGate<float>(info, "gate_beta", count, gate_names, false);
  const auto offset = ReadPerGate<int64_t>(info, "gate_table_offset", count, gate_names, false);
  const auto index_scale = ReadPerGate<float>(info, "gate_index_scale", count, gate_names, false);
  const auto index_size = ReadPerGate<int64_t>(info, "gate_index_size", count, gate_names, false);
  for (size_t g = 0; g < static_cast<size_t>(count); ++g) {
    const Kind kind = Choose("gate_kinds[" + std::to_string(g) + "]", kinds[g], Kinds());
    config->gates[g] = {kind, min[g], max[g], alpha[g], beta[g], offset[g], index_scale[g], index_size[g]};
  }
}

GruConfig ReadGruConfig(const ort::KernelInfo& info) {
  GruConfig config;
  ReadHiddenCell(info, GruGrid::kCount, "z, r, h", &config);
  config.linear_before_reset = ReadFlag(info, "linear_before_reset");
  info.Read("reset_scale", &config.reset_scale);
  info.Read("reset_zero_point", &config.reset_zero_point);
  ValidateConfig(config);
  return config;
}

RnnConfig ReadRnnConfig(const ort::KernelInfo& info) {
  RnnConfig config;
  ReadHiddenCell(info, GridPlaces{config.gate_count}.own(), "h", &config);
  ValidateConfig(config);
  return config;
}

}  // namespace rnnqc
