#ifndef RNNQC_OPS_QUANT_LSTM_CELL_H_
#define RNNQC_OPS_QUANT_LSTM_CELL_H_

#include <vector>

#include "ops/cell_operator.h"

namespace rnnqc {

// ai.rnnqc::QuantLSTMCell, version 1, and its aliases.
std::vector<RegisteredOperator> QuantLstmCellOps(const ort::OrtApi* api, bool infers_shapes);

}  // namespace rnnqc

#endif  // RNNQC_OPS_QUANT_LSTM_CELL_H_
