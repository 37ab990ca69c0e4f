#ifndef RNNQC_OPS_FIXED_POINT_ATTRIBUTES_H_
#define RNNQC_OPS_FIXED_POINT_ATTRIBUTES_H_

#include <cstdint>

#include "cells/driver/cell_config.h"
#include "ort_support.h"

namespace rnnqc {

// The attributes of arithmetic "grid" that all operators have, for a cell of so many quantizers, and what follows from
// them; `gate_names`, as "z, r, h", are for messages. Throws std::invalid_argument as cell_attributes.h says.
void ReadGrid(const ort::KernelInfo& info, int64_t points, const char* gate_names, CellConfig* config);

}  // namespace rnnqc

#endif  // RNNQC_OPS_FIXED_POINT_ATTRIBUTES_H_
