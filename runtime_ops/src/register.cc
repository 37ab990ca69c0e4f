#include <cstdio>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <utility>
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

// Entry of session options: the operators that their sessions need, separated by semicolons. onnxruntime makes each
// operator of a library anew for each session, which takes some 40 us for one. Without this entry it makes all of them.
constexpr char kOperatorsEntry[] = "rnnqc.operators";
constexpr char kSeparator = ';';
constexpr char kAll[] = "*";

// They must outlive every session and are never released.
const std::vector<rnnqc::RegisteredOperator>& Operators(const OrtApi& api, const rnnqc::ort::OrtApiBase* base) {
  static const auto* const all = [&] {
    using rnnqc::ort::kShapeReferenceVersion;
    if (Has(base, kShapeReferenceVersion)) {
      const OrtApi* later = base->GetApi(kShapeReferenceVersion);
      rnnqc::ort::UseLaterApi(api, reinterpret_cast<const rnnqc::ort::OrtLaterApi*>(later));
    }
    const bool infers_shapes = Has(base, kInfersShapes);
    auto* const made = new std::vector<rnnqc::RegisteredOperator>;
    for (const auto& make : {rnnqc::QuantLstmCellOps, rnnqc::QuantGruCellOps, rnnqc::QuantRnnCellOps,
                             rnnqc::QuantLinearOps, rnnqc::QuantCustomCellOps, rnnqc::RearrangeOps}) {
      for (auto& op : make(&api, infers_shapes)) made->push_back(std::move(op));
    }
    return made;
  }();
  return *all;
}

std::string NeededOperators(const OrtApi& api, const rnnqc::ort::OrtSessionOptions* options) {
  int present = 0;
  rnnqc::ort::Check(api, api.HasSessionConfigEntry()(options, kOperatorsEntry, &present));
  if (present == 0) return kAll;
  size_t size = 0;
  rnnqc::ort::Check(api, api.GetSessionConfigEntry()(options, kOperatorsEntry, nullptr, &size));
  std::string names(size, '\0');
  rnnqc::ort::Check(api, api.GetSessionConfigEntry()(options, kOperatorsEntry, names.data(), &size));
  names.resize(size - 1);
  return names;
}

// One domain serves all sessions that need the same operators; null for none of them. Names that are no operators make
// no difference, so that files with any names cannot make any number of domains.
OrtCustomOpDomain* Domain(const OrtApi& api, const rnnqc::ort::OrtApiBase* base, const std::string& needed) {
  static std::mutex mutex;
  static auto* const domains = new std::map<std::vector<const rnnqc::RegisteredOperator*>, OrtCustomOpDomain*>;
  const std::lock_guard<std::mutex> lock(mutex);
  const std::string names = kSeparator + needed + kSeparator;
  std::vector<const rnnqc::RegisteredOperator*> chosen;
  for (const auto& op : Operators(api, base)) {
    if (needed == kAll || names.find(kSeparator + op.name + kSeparator) != std::string::npos) chosen.push_back(&op);
  }
  if (chosen.empty()) return nullptr;
  const auto found = domains->find(chosen);
  if (found != domains->end()) return found->second;
  OrtCustomOpDomain* created = nullptr;
  rnnqc::ort::Check(api, api.CreateCustomOpDomain()("ai.rnnqc", &created));
  for (const rnnqc::RegisteredOperator* op : chosen) rnnqc::ort::Check(api, api.CustomOpDomain_Add()(created, op));
  domains->emplace(std::move(chosen), created);
  return created;
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
    OrtCustomOpDomain* const domain = Domain(*api, base, NeededOperators(*api, options));
    if (domain != nullptr) rnnqc::ort::Check(*api, api->AddCustomOpDomain()(options, domain));
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
