#ifndef RNNQC_THREADS_COST_H_
#define RNNQC_THREADS_COST_H_

#include <cstdint>

namespace rnnqc {

// The number of processors of this machine, at least 1.
int64_t Processors();

// Estimated nanoseconds of a product, which streams its weights once or is bound by its multiplications.
double ProductTime(double weight_bytes, int64_t k, int64_t columns, int64_t rows);

// Whether a call of this duration is worth several threads.
bool IsWorthThreads(double nanoseconds);

}  // namespace rnnqc

#endif  // RNNQC_THREADS_COST_H_
