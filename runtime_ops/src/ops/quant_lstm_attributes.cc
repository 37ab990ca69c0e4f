#include "ops/quant_lstm_attributes.h"

#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace rnnqc {
namespace {

template <typename Value>
using Choices = std::vector<std::pair<const char*, Value>>;

const Choices<Direction>& Directions() {
  static const Choices<Direction> choices = {{"forward", Direction::kForward}, {"reverse", Direction::kReverse}};
  return choices;
}

const Choices<Arithmetic>& Arithmetics() {
  static const Choices<Arithmetic> choices = {
      {"tables", Arithmetic::kTables}, {"grid", Arithmetic::kGrid}, {"grid32", Arithmetic::kGrid32}};
  return choices;
}

const Choices<GridRounding>& Roundings() {
  static const Choices<GridRounding> choices = {{"half_even", GridRounding::kHalfEven},
                                                {"half_away", GridRounding::kHalfAway},
                                                {"half_up", GridRounding::kHalfUp},
                                                {"floor", GridRounding::kFloor},
                                                {"ceil", GridRounding::kCeil},
                                                {"half_even_up", GridRounding::kHalfEvenUp},
                                                {"toward_zero", GridRounding::kTowardZero}};
  return choices;
}

const Choices<CodeMode>& InputModes() {
  static const Choices<CodeMode> choices = {
      {"dynamic_row", CodeMode::kDynamicRow}, {"static", CodeMode::kStatic}, {"codes", CodeMode::kCodes}};
  return choices;
}

const Choices<CodeMode>& HiddenModes() {
  static const Choices<CodeMode> choices = {{"static", CodeMode::kStatic}, {"dynamic_row", CodeMode::kDynamicRow}};
  return choices;
}

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

template <typename Value>
Value Choose(const std::string& attribute, const std::string& text, const Choices<Value>& choices) {
  std::string known;
  for (const auto& choice : choices) {
    if (text == choice.first) return choice.second;
    known += (known.empty() ? "" : ", ") + std::string(choice.first);
  }
  throw std::invalid_argument("attribute " + attribute + " is \"" + text + "\"; this version of the library knows " +
                              known + ". Use a newer rnnqc library.");
}

template <typename Value>
void ReadChoice(const ort::KernelInfo& info, const char* name, const Choices<Value>& choices, Value* value) {
  std::string text;
  if (info.Read(name, &text)) *value = Choose(name, text, choices);
}

bool ReadFlag(const ort::KernelInfo& info, const char* name) {
  int64_t value = 0;
  info.Read(name, &value);
  if (value != 0 && value != 1) {
    throw std::invalid_argument("attribute " + std::string(name) + " is " + std::to_string(value) +
                                ", expected 0 or 1");
  }
  return value == 1;
}

[[noreturn]] void FailMissing(const char* name) {
  throw std::invalid_argument("the attribute " + std::string(name) + " is missing");
}

void CheckCount(const char* name, size_t found, size_t expected, const char* words) {
  if (found == expected) return;
  throw std::invalid_argument("attribute " + std::string(name) + " has " + std::to_string(found) +
                              " elements, expected " + std::to_string(expected) + " (" + words + ")");
}

template <typename Element>
std::vector<Element> ReadPerGate(const ort::KernelInfo& info, const char* name, bool required,
                                 Element otherwise = Element()) {
  std::vector<Element> values(kGates, otherwise);
  const bool found = info.Read(name, &values);
  if (!found && required) FailMissing(name);
  if (found) CheckCount(name, values.size(), static_cast<size_t>(kGates), "gates i, o, f, c");
  return values;
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

void ReadGates(const ort::KernelInfo& info, LstmConfig* config) {
  std::string kinds_text = "table,table,table,table";
  info.Read("gate_kinds", &kinds_text);
  const std::vector<std::string> kinds = SplitAtCommas(kinds_text);
  if (kinds.size() != static_cast<size_t>(kGates)) {
    throw std::invalid_argument("attribute gate_kinds is \"" + kinds_text +
                                "\", expected four kinds separated by commas (gates i, o, f, c)");
  }
  const auto min = ReadPerGate<float>(info, "gate_min", true);
  const auto max = ReadPerGate<float>(info, "gate_max", true);
  const auto alpha = ReadPerGate<float>(info, "gate_alpha", false);
  const auto beta = ReadPerGate<float>(info, "gate_beta", false);
  const auto offset = ReadPerGate<int64_t>(info, "gate_table_offset", false);
  const auto index_scale = ReadPerGate<float>(info, "gate_index_scale", false);
  const auto index_size = ReadPerGate<int64_t>(info, "gate_index_size", false);
  for (size_t g = 0; g < static_cast<size_t>(kGates); ++g) {
    const Kind kind = Choose("gate_kinds[" + std::to_string(g) + "]", kinds[g], Kinds());
    config->gates[g] = {kind, min[g], max[g], alpha[g], beta[g], offset[g], index_scale[g], index_size[g]};
  }
}

constexpr size_t kPoints = static_cast<size_t>(GridOrder::kCount);

template <typename Element>
std::vector<Element> ReadPerPoint(const ort::KernelInfo& info, const char* name, bool required = true) {
  std::vector<Element> values(kPoints);
  if (!info.Read(name, &values) && required) FailMissing(name);
  CheckCount(name, values.size(), kPoints, "quantizers");
  return values;
}

// One name for all quantizers, or one for each.
std::vector<GridRounding> ReadRoundings(const ort::KernelInfo& info) {
  const char* const name = "grid_rounding";
  std::string text = "half_even";
  info.Read(name, &text);
  const std::vector<std::string> names = SplitAtCommas(text);
  if (names.size() != 1) CheckCount(name, names.size(), kPoints, "quantizers, or one for all");
  std::vector<GridRounding> roundings(kPoints);
  for (size_t i = 0; i < kPoints; ++i) {
    const size_t k = names.size() == 1 ? 0 : i;
    roundings[i] = Choose(std::string(name) + "[" + std::to_string(k) + "]", names[k], Roundings());
  }
  return roundings;
}

void ReadGrid(const ort::KernelInfo& info, LstmConfig* config) {
  const auto scale = ReadPerPoint<float>(info, "grid_scale");
  const auto zero_point = ReadPerPoint<int64_t>(info, "grid_zero_point");
  const auto min = ReadPerPoint<int64_t>(info, "grid_min");
  const auto max = ReadPerPoint<int64_t>(info, "grid_max");
  const auto rounding = ReadRoundings(info);
  const auto offset = ReadPerPoint<int64_t>(info, "grid_offset", false);
  for (size_t i = 0; i < kPoints; ++i) {
    config->grid.points[i] = {scale[i], zero_point[i], min[i], max[i], rounding[i], offset[i]};
  }
  info.Read("accumulator_bits", &config->grid.accumulator_bits);
  config->grid.rounded_output = ReadFlag(info, "rounded_output");
  const GridPoint& x = config->grid.points[GridOrder::kInput];
  const GridPoint& h = config->grid.points[GridOrder::kHidden];
  config->x_scale = x.scale;
  config->h_scale = h.scale;
  config->cell_scale = config->grid.points[GridOrder::kCell].scale;
  config->x_zero_point = x.zero_point;
  config->h_zero_point = h.zero_point;
  config->x_bits = x.max > 255 ? 16 : 8;
  config->h_bits = h.max > 255 ? 16 : 8;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const auto gate_min = ReadPerGate<float>(info, "gate_min", false, -infinity);
  const auto gate_max = ReadPerGate<float>(info, "gate_max", false, infinity);
  const auto table_offset = ReadPerGate<int64_t>(info, "gate_table_offset", false);
  for (size_t g = 0; g < static_cast<size_t>(kGates); ++g) {
    config->gates[g].min = gate_min[g];
    config->gates[g].max = gate_max[g];
    config->gates[g].table_offset = table_offset[g];
  }
}

void ReadTables(const ort::KernelInfo& info, LstmConfig* config) {
  info.Read("x_scale", &config->x_scale);
  info.Read("x_zero_point", &config->x_zero_point);
  ReadChoice(info, "h_mode", HiddenModes(), &config->h_mode);
  info.Read("h_scale", &config->h_scale);
  info.Read("h_zero_point", &config->h_zero_point);
  info.Read("cell_scale", &config->cell_scale);
  info.Read("cell_max", &config->cell_max);
  ReadGates(info, config);
  ReadChoice(info, "output_kind", Kinds(), &config->output_kind);
  info.Read("output_alpha", &config->output_alpha);
  info.Read("output_beta", &config->output_beta);
  info.Read("cell_index_scale", &config->cell_index_scale);
  info.Read("x_bits", &config->x_bits);
  info.Read("h_bits", &config->h_bits);
}

}  // namespace

LstmConfig ReadLstmConfig(const ort::KernelInfo& info) {
  LstmConfig config;
  ReadChoice(info, "arithmetic", Arithmetics(), &config.arithmetic);
  if (!info.Read("hidden_size", &config.hidden_size)) FailMissing("hidden_size");
  ReadChoice(info, "direction", Directions(), &config.direction);
  ReadChoice(info, "x_mode", InputModes(), &config.x_mode);
  config.input_forget = ReadFlag(info, "input_forget");
  config.y_direction_axis = ReadFlag(info, "y_direction_axis");
  config.state_direction_axis = ReadFlag(info, "state_direction_axis");
  info.Read("one", &config.one);
  info.Read("w_group_size", &config.w_group_size);
  info.Read("r_group_size", &config.r_group_size);
  if (config.is_grid()) {
    ReadGrid(info, &config);
  } else {
    ReadTables(info, &config);
  }
  ValidateConfig(config);
  return config;
}

}  // namespace rnnqc
