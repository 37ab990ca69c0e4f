#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "export.h"
#include "kernels/dispatch.h"
#include "ops/operators.h"
#include "ort_support.h"

namespace {

using rnnqc::ort::OrtApi;
using rnnqc::ort::OrtCustomOpDomain;

// Whether the runtime has this version of the API, that is, whether it is version 1.`api` or later.
bool Has(const rnnqc::ort::OrtApiBase* base, uint32_t api) {
  unsigned major = 0;
  unsigned minor = 0;
  return std::sscanf(base->GetVersionString(), "%u.%u", &major, &minor) == 2 && (major > 1 || minor >= api);
}

// Before version 1.24 onnxruntime reads a null pointer when an operator that infers shapes has a node without one of
// its optional inputs (https://github.com/microsoft/onnxruntime/pull/26199). Before 1.28 it writes beyond its memory
// when the shape of an output is set that the node does not have, and how many it has cannot be asked.
constexpr uint32_t kInfersShapes = 28;

// One domain serves every session; it must outlive them all and is never released.
OrtCustomOpDomain* Domain(const OrtApi& api, const rnnqc::ort::OrtApiBase* base) {
  static OrtCustomOpDomain* const domain = [&] {
    using rnnqc::ort::kShapeReferenceVersion;
    if (Has(base, kShapeReferenceVersion)) {
      const OrtApi* later = base->GetApi(kShapeReferenceVersion);
      rnnqc::ort::UseLaterApi(api, reinterpret_cast<const rnnqc::ort::OrtLaterApi*>(later));
    }
    const bool infers_shapes = Has(base, kInfersShapes);
    OrtCustomOpDomain* created = nullptr;
    rnnqc::ort::Check(api, api.CreateCustomOpDomain()("ai.rnnqc", &created));
    // As the domain, they are never released.
    for (const auto& make : {rnnqc::QuantLstmCellOps, rnnqc::QuantGruCellOps, rnnqc::QuantRnnCellOps,
                             rnnqc::QuantLinearOps, rnnqc::QuantCustomCellOps, rnnqc::RearrangeOps}) {
      const auto* const ops = new std::vector<rnnqc::RegisteredOperator>(make(&api, infers_shapes));
      for (const auto& op : *ops) rnnqc::ort::Check(api, api.CustomOpDomain_Add()(created, &op));
    }
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
    OrtCustomOpDomain* const domain = Domain(*api, base);
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
