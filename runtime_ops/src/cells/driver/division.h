#ifndef RNNQC_CELLS_DRIVER_DIVISION_H_
#define RNNQC_CELLS_DRIVER_DIVISION_H_

#include <cstdint>

#include "cells/driver/cell_run.h"

namespace rnnqc {

// `hidden_bytes` and `hidden_columns` are those of all recurrent matrices; `members` threads took part in the last
// call.
// Of this machine, at least 1.
int64_t Processors();

// Estimated nanoseconds of a product, which streams its weights once or is bound by its multiplications.
double ProductTime(double weight_bytes, int64_t k, int64_t columns, int64_t rows);

// Whether a call that takes so many nanoseconds is worth several threads.
bool IsWorthThreads(double nanoseconds);

Division Divide(const CellConfig& config, const KernelTable& kernels, const PackedCell& packed, int64_t hidden_bytes,
                int64_t hidden_columns, const CellArgs& args, int64_t members);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_DRIVER_DIVISION_H_
