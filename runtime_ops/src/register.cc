#include <cstdio>
#include <exception>
#include <string>

#include "export.h"
#include "kernels/dispatch.h"
#include "ops/quant_gru_cell.h"
#include "ops/quant_lstm_cell.h"
#include "ort_support.h"

namespace {

using rnnqc::ort::OrtApi;
using rnnqc::ort::OrtCustomOpDomain;

// Before version 1.24 onnxruntime reads a null pointer when an operator that infers shapes has a node without one of
// its optional inputs (https://github.com/microsoft/onnxruntime/pull/26199).
bool CanInferShapes(const std::string& version) {
  int major = 0;
  int minor = 0;
  return std::sscanf(version.c_str(), "%d.%d", &major, &minor) == 2 && (major > 1 || minor >= 24);
}

// One domain serves every session; it must outlive them all and is never released.
OrtCustomOpDomain* Domain(const OrtApi& api, bool infers_shapes) {
  static OrtCustomOpDomain* const domain = [&] {
    OrtCustomOpDomain* created = nullptr;
    rnnqc::ort::Check(api, api.CreateCustomOpDomain()("ai.rnnqc", &created));
    rnnqc::ort::Check(api, api.CustomOpDomain_Add()(created, rnnqc::QuantLstmCellOp(&api, infers_shapes)));
    rnnqc::ort::Check(api, api.CustomOpDomain_Add()(created, rnnqc::QuantGruCellOp(&api, infers_shapes)));
    rnnqc::ort::Check(api, api.CustomOpDomain_Add()(created, rnnqc::QuantRnnCellOp(&api, infers_shapes)));
    return created;
  }();
  return domain;
}

}  // namespace

extern "C" {

RNNQC_EXPORT rnnqc::ort::OrtStatus* RegisterCustomOps(rnnqc::ort::OrtSessionOptions* options,
                                                      const rnnqc::ort::OrtApiBase* base) {
  const OrtApi* api = base->GetApi(rnnqc::ort::kApiVersion);
  if (api == nullptr) {
    // Present in every version.
    return base->GetApi(1)->CreateStatus()(rnnqc::ort::kFail,
                                           "the rnnqc library needs onnxruntime 1.17 or later; update onnxruntime");
  }
  return rnnqc::ort::Guard(*api, "rnnqc: ", [&] {
    OrtCustomOpDomain* const domain = Domain(*api, CanInferShapes(base->GetVersionString()));
    rnnqc::ort::Check(*api, api->AddCustomOpDomain()(options, domain));
  });
}

// Name of the instruction set in use. If RNNQC_ISA asks for one that is not available: null, and `message` (of
// `size` bytes) says why.
RNNQC_EXPORT const char* rnnqc_isa(char* message, size_t size) {
  try {
    return rnnqc::SelectedTable().isa;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    if (size > 0) message[text.copy(message, size - 1)] = '\0';
    return nullptr;
  }
}

}  // extern "C"
