#include "ops/quant_lstm_attributes.h"

#include <limits>
#include <string>
#include <vector>

#include "ops/cell_attributes.h"

namespace rnnqc {
namespace {

constexpr const char* kGateNames = "i, o, f, c";

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
  if (config->x_bits == 8) config->x_codes = {static_cast<uint8_t>(x.min), static_cast<uint8_t>(x.max)};
  if (config->h_bits == 8) config->h_codes = {static_cast<uint8_t>(h.min), static_cast<uint8_t>(h.max)};
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const auto gate_min = ReadPerGate<float>(info, "gate_min", kGates, kGateNames, false, -infinity);
  const auto gate_max = ReadPerGate<float>(info, "gate_max", kGates, kGateNames, false, infinity);
  const auto table_offset = ReadPerGate<int64_t>(info, "gate_table_offset", kGates, kGateNames, false);
  for (size_t g = 0; g < static_cast<size_t>(kGates); ++g) {
    config->gates[g].min = gate_min[g];
    config->gates[g].max = gate_max[g];
    config->gates[g].table_offset = table_offset[g];
  }
}

void ReadTables(const ort::KernelInfo& info, LstmConfig* config) {
  ReadCodes(info, config);
  info.Read("cell_scale", &config->cell_scale);
  info.Read("cell_max", &config->cell_max);
  ReadGates(info, kGateNames, config);
  ReadChoice(info, "output_kind", Kinds(), &config->output_kind);
  info.Read("output_alpha", &config->output_alpha);
  info.Read("output_beta", &config->output_beta);
  info.Read("cell_index_scale", &config->cell_index_scale);
}

}  // namespace

LstmConfig ReadLstmConfig(const ort::KernelInfo& info) {
  LstmConfig config;
  ReadChoice(info, "arithmetic", Arithmetics(), &config.arithmetic);
  ReadCell(info, &config);
  config.input_forget = ReadFlag(info, "input_forget");
  info.Read("one", &config.one);
  if (config.is_grid()) {
    ReadGrid(info, &config);
  } else {
    ReadTables(info, &config);
  }
  ValidateConfig(config);
  return config;
}

}  // namespace rnnqc
