#ifndef RNNQC_OPS_OPERATORS_H_
#define RNNQC_OPS_OPERATORS_H_

#include <vector>

#include "ops/registered_operator.h"

namespace rnnqc {

// Version 1 of each operator of domain ai.rnnqc, and its aliases, one for each function body.
std::vector<RegisteredOperator> QuantLstmCellOps(const ort::OrtApi* api, bool infers_shapes);
std::vector<RegisteredOperator> QuantGruCellOps(const ort::OrtApi* api, bool infers_shapes);
std::vector<RegisteredOperator> QuantRnnCellOps(const ort::OrtApi* api, bool infers_shapes);
std::vector<RegisteredOperator> QuantLinearOps(const ort::OrtApi* api, bool infers_shapes);
std::vector<RegisteredOperator> QuantCustomCellOps(const ort::OrtApi* api, bool infers_shapes);
std::vector<RegisteredOperator> RearrangeOps(const ort::OrtApi* api, bool infers_shapes);

}  // namespace rnnqc

#endif  // RNNQC_OPS_OPERATORS_H_
