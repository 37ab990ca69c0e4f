/* The native library of rnnqc, for programs in C and C++ that create sessions of onnxruntime themselves. */
#ifndef RNNQC_OPS_H_
#define RNNQC_OPS_H_

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct OrtApiBase;
struct OrtSessionOptions;
struct OrtStatus;

/* Registers the operators of domain ai.rnnqc with every session that is created from `options`; once for each options.
 *
 * `base` is what OrtGetApiBase() returns. Returns null, or an error that the caller releases (OrtApi::ReleaseStatus).
 * onnxruntime 1.17 or later. The library must stay loaded as long as there are sessions. The name is the one that
 * OrtApi::RegisterCustomOpsLibrary_V2 looks for in a library that it is given the path of. */
struct OrtStatus* RegisterCustomOps(struct OrtSessionOptions* options, const struct OrtApiBase* base);

/* The instruction set of the kernels, such as "avx2": the best of this processor, or the one that the environment
 * variable RNNQC_ISA names. Null if that is not available; `message`, of `size` bytes, then says why. */
const char* rnnqc_isa(char* message, size_t size);

#ifdef __cplusplus
}
#endif

#endif /* RNNQC_OPS_H_ */
