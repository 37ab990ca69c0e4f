#ifndef RNNQC_OPS_QUANT_LINEAR_H_
#define RNNQC_OPS_QUANT_LINEAR_H_

#include <vector>

#include "ops/registered_operator.h"

namespace rnnqc {

// ai.rnnqc::QuantLinear, version 1, and its other names, one for each function body; as QuantLstmCellOps.
std::vector<RegisteredOperator> QuantLinearOps(const ort::OrtApi* api, bool infers_shapes);

}  // namespace rnnqc

#endif  // RNNQC_OPS_QUANT_LINEAR_H_
