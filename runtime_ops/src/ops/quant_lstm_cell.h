#ifndef RNNQC_OPS_QUANT_LSTM_CELL_H_
#define RNNQC_OPS_QUANT_LSTM_CELL_H_

#include "ort_abi.h"

namespace rnnqc {

// ai.rnnqc::QuantLSTMCell, version 1. The object lives as long as the library. Without shape inference the outputs have
// no shapes before they are computed.
const ort::OrtCustomOp* QuantLstmCellOp(const ort::OrtApi* api, bool infers_shapes);

}  // namespace rnnqc

#endif  // RNNQC_OPS_QUANT_LSTM_CELL_H_
