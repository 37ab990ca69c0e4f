#include "ops/cell_attributes.h"

namespace rnnqc {
namespace {

constexpr const char* kGateNames = "i, o, f, c";

const Choices<Arithmetic>& Arithmetics() {
  static const Choices<Arithmetic> choices = {
      {"tables", Arithmetic::kTables}, {"grid", Arithmetic::kGrid}, {"grid32", Arithmetic::kGrid32}};
  return choices;
}

void ReadLstmGrid(const ort::KernelInfo& info, LstmConfig* config) {
  ReadGrid(info, LstmGrid::kCount, kGateNames, config);
  config->grid.rounded_output = ReadFlag(info, "rounded_output");
  config->cell_scale = config->grid.points[LstmGrid::kCell].scale;
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
    ReadLstmGrid(info, &config);
  } else {
    ReadTables(info, &config);
  }
  ValidateConfig(config);
  return config;
}

}  // namespace rnnqc
