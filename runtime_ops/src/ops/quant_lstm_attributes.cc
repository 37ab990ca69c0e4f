#include "ops/quant_lstm_attributes.h"

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

template <typename Element>
std::vector<Element> ReadPerGate(const ort::KernelInfo& info, const char* name, bool required) {
  std::vector<Element> values(kGates, Element());
  const bool found = info.Read(name, &values);
  if (!found && required) throw std::invalid_argument("the attribute " + std::string(name) + " is missing");
  if (found && values.size() != static_cast<size_t>(kGates)) {
    throw std::invalid_argument("attribute " + std::string(name) + " has " + std::to_string(values.size()) +
                                " elements, expected 4 (gates i, o, f, c)");
  }
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

}  // namespace

LstmConfig ReadLstmConfig(const ort::KernelInfo& info) {
  LstmConfig config;
  if (!info.Read("hidden_size", &config.hidden_size)) {
    throw std::invalid_argument("the attribute hidden_size is missing");
  }
  ReadChoice(info, "direction", Directions(), &config.direction);
  ReadChoice(info, "x_mode", InputModes(), &config.x_mode);
  info.Read("x_scale", &config.x_scale);
  info.Read("x_zero_point", &config.x_zero_point);
  ReadChoice(info, "h_mode", HiddenModes(), &config.h_mode);
  info.Read("h_scale", &config.h_scale);
  info.Read("h_zero_point", &config.h_zero_point);
  info.Read("cell_scale", &config.cell_scale);
  info.Read("cell_max", &config.cell_max);
  ReadGates(info, &config);
  ReadChoice(info, "output_kind", Kinds(), &config.output_kind);
  info.Read("output_alpha", &config.output_alpha);
  info.Read("output_beta", &config.output_beta);
  info.Read("cell_index_scale", &config.cell_index_scale);
  config.input_forget = ReadFlag(info, "input_forget");
  config.y_direction_axis = ReadFlag(info, "y_direction_axis");
  config.state_direction_axis = ReadFlag(info, "state_direction_axis");
  info.Read("one", &config.one);
  info.Read("w_group_size", &config.w_group_size);
  info.Read("r_group_size", &config.r_group_size);
  info.Read("x_bits", &config.x_bits);
  info.Read("h_bits", &config.h_bits);
  ValidateConfig(config);
  return config;
}

}  // namespace rnnqc
