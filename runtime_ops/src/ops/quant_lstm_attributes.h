#ifndef RNNQC_OPS_QUANT_LSTM_ATTRIBUTES_H_
#define RNNQC_OPS_QUANT_LSTM_ATTRIBUTES_H_

#include "cells/lstm/config.h"
#include "ort_support.h"

namespace rnnqc {

// The attributes of a QuantLSTMCell node. Throws std::invalid_argument, naming the attribute, for what is missing, of
// another type, or has a value the operator does not allow or this library does not know.
LstmConfig ReadLstmConfig(const ort::KernelInfo& info);

}  // namespace rnnqc

#endif  // RNNQC_OPS_QUANT_LSTM_ATTRIBUTES_H_
