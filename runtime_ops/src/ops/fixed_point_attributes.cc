#include <limits>
#include <string>
#include <vector>

#include "ops/cell_attributes.h"

namespace rnnqc {
namespace {

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

template <typename Element>
std::vector<Element> ReadPerPoint(const ort::KernelInfo& info, const char* name, size_t count, bool required = true) {
  std::vector<Element> values(count);
  if (!info.Read(name, &values) && required) FailMissing(name);
  CheckCount(name, values.size(), count, "quantizers");
  return values;
}

// One name for all quantizers, or one for each.
std::vector<GridRounding> ReadRoundings(const ort::KernelInfo& info, size_t count) {
  const char* const name = "grid_rounding";
  std::string text = "half_even";
  info.Read(name, &text);
  const std::vector<std::string> names = SplitAtCommas(text);
  if (names.size() != 1) CheckCount(name, names.size(), count, "quantizers, or one for all");
  std::vector<GridRounding> roundings(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t k = names.size() == 1 ? 0 : i;
    roundings[i] = Choose(std::string(name) + "[" + std::to_string(k) + "]", names[k], Roundings());
  }
  return roundings;
}

}  // namespace

void ReadGrid(const ort::KernelInfo& info, int64_t points, const char* gate_names, CellConfig* config) {
  const size_t count = static_cast<size_t>(points);
  const auto scale = ReadPerPoint<float>(info, "grid_scale", count);
  const auto zero_point = ReadPerPoint<int64_t>(info, "grid_zero_point", count);
  const auto min = ReadPerPoint<int64_t>(info, "grid_min", count);
  const auto max = ReadPerPoint<int64_t>(info, "grid_max", count);
  const auto rounding = ReadRoundings(info, count);
  const auto offset = ReadPerPoint<int64_t>(info, "grid_offset", count, false);
  for (size_t i = 0; i < count; ++i) {
    config->grid.points[i] = {scale[i], zero_point[i], min[i], max[i], rounding[i], offset[i]};
  }
  info.Read("accumulator_bits", &config->grid.accumulator_bits);
  const GridPoint& x = config->grid.input();
  const GridPoint& h = config->grid.hidden();
  config->x_scale = x.scale;
  config->h_scale = h.scale;
  config->x_zero_point = x.zero_point;
  config->h_zero_point = h.zero_point;
  config->x_bits = x.max > 255 ? 16 : 8;
  config->h_bits = h.max > 255 ? 16 : 8;
  if (config->x_bits == 8) config->x_codes = {static_cast<uint8_t>(x.min), static_cast<uint8_t>(x.max)};
  if (config->h_bits == 8) config->h_codes = {static_cast<uint8_t>(h.min), static_cast<uint8_t>(h.max)};
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const int64_t gates = config->gate_count;
  const auto gate_min = ReadPerGate<float>(info, "gate_min", gates, gate_names, false, -infinity);
  const auto gate_max = ReadPerGate<float>(info, "gate_max", gates, gate_names, false, infinity);
  const auto table_offset = ReadPerGate<int64_t>(info, "gate_table_offset", gates, gate_names, false);
  for (size_t g = 0; g < static_cast<size_t>(gates); ++g) {
    config->gates[g].min = gate_min[g];
    config->gates[g].max = gate_max[g];
    config->gates[g].table_offset = table_offset[g];
  }
}

}  // namespace rnnqc
