#ifndef RNNQC_KERNELS_COMMON_COMPILER_H_
#define RNNQC_KERNELS_COMMON_COMPILER_H_

// RNNQC_NOINLINE: a loop over many accumulators keeps them in registers only in a function of its own.
// RNNQC_UNROLL(n): the next loop, over an array of registers, has at most n rounds and must not remain a loop.
#if defined(_MSC_VER) && !defined(__clang__)
#define RNNQC_NOINLINE __declspec(noinline)
#define RNNQC_FORCEINLINE __forceinline
#define RNNQC_UNROLL(n)
#elif defined(__clang__)
#define RNNQC_NOINLINE __attribute__((noinline))
#define RNNQC_FORCEINLINE inline __attribute__((always_inline))
#define RNNQC_UNROLL(n) _Pragma("unroll")
#else
#define RNNQC_NOINLINE __attribute__((noinline))
#define RNNQC_FORCEINLINE inline __attribute__((always_inline))
#define RNNQC_PRAGMA(text) _Pragma(#text)
#define RNNQC_UNROLL(n) RNNQC_PRAGMA(GCC unroll n)
#endif

#endif  // RNNQC_KERNELS_COMMON_COMPILER_H_
