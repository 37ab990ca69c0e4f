#ifndef RNNQC_OPS_QUANT_GRU_CELL_H_
#define RNNQC_OPS_QUANT_GRU_CELL_H_

#include <vector>

#include "ops/cell_operator.h"

namespace rnnqc {

// ai.rnnqc::QuantGRUCell and ai.rnnqc::QuantRNNCell, version 1; as QuantLstmCellOps.
std::vector<RegisteredOperator> QuantGruCellOps(const ort::OrtApi* api, bool infers_shapes);
std::vector<RegisteredOperator> QuantRnnCellOps(const ort::OrtApi* api, bool infers_shapes);

}  // namespace rnnqc

#endif  // RNNQC_OPS_QUANT_GRU_CELL_H_
