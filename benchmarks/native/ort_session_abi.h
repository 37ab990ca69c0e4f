#ifndef RNNQC_BENCHMARKS_ORT_SESSION_ABI_H_
#define RNNQC_BENCHMARKS_ORT_SESSION_ABI_H_

// The part of onnxruntime's C ABI that runs a session, declared as in runtime_ops/src/ort_abi.h and for the
// same reason; scripts/check_ort_abi.cc compares it with the official header, too.

#include "../../runtime_ops/src/ort_abi.h"

namespace rnnqc::ort {

struct OrtEnv;
struct OrtRunOptions;
struct OrtSession;

enum LoggingLevel : int { kLogFatal = 4 };

// X(name, position in OrtApi, result, parameters)
#define RNNQC_ORT_SESSION_API(X)                                                                                \
  X(CreateEnv, 3, OrtStatus*, (LoggingLevel, const char*, OrtEnv**))                                            \
  X(CreateSession, 7, OrtStatus*, (const OrtEnv*, const char*, const OrtSessionOptions*, OrtSession**))         \
  X(Run, 9, OrtStatus*,                                                                                         \
    (OrtSession*, const OrtRunOptions*, const char* const*, const OrtValue* const*, size_t, const char* const*, \
     size_t, OrtValue**))                                                                                       \
  X(CreateSessionOptions, 10, OrtStatus*, (OrtSessionOptions**))                                                \
  X(SetIntraOpNumThreads, 24, OrtStatus*, (OrtSessionOptions*, int))                                            \
  X(SetInterOpNumThreads, 25, OrtStatus*, (OrtSessionOptions*, int))                                            \
  X(ReleaseSession, 95, void, (OrtSession*))                                                                    \
  X(AddSessionConfigEntry, 130, OrtStatus*, (OrtSessionOptions*, const char*, const char*))                     \
  X(RegisterCustomOpsLibrary_V2, 228, OrtStatus*, (OrtSessionOptions*, const char*))

struct SessionApi {
  const OrtApi* api;

#define RNNQC_ORT_ENTRY(name, position, result, parameters) \
  auto name() const { return reinterpret_cast<result(*) parameters>(const_cast<void*>(api->entries[position])); }
  RNNQC_ORT_SESSION_API(RNNQC_ORT_ENTRY)
#undef RNNQC_ORT_ENTRY
};

}  // namespace rnnqc::ort

#endif  // RNNQC_BENCHMARKS_ORT_SESSION_ABI_H_
