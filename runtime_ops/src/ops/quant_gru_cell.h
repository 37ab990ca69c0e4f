#ifndef RNNQC_OPS_QUANT_GRU_CELL_H_
#define RNNQC_OPS_QUANT_GRU_CELL_H_

#include "ort_abi.h"

namespace rnnqc {

// ai.rnnqc::QuantGRUCell and ai.rnnqc::QuantRNNCell, version 1; as QuantLstmCellOp.
const ort::OrtCustomOp* QuantGruCellOp(const ort::OrtApi* api, bool infers_shapes);
const ort::OrtCustomOp* QuantRnnCellOp(const ort::OrtApi* api, bool infers_shapes);

}  // namespace rnnqc

#endif  // RNNQC_OPS_QUANT_GRU_CELL_H_
