#ifndef RNNQC_OPS_CELL_OPERATOR_H_
#define RNNQC_OPS_CELL_OPERATOR_H_

#include <vector>

#include "ops/cell_inputs.h"
#include "ops/registered_operator.h"

namespace rnnqc {

// Describes the operator itself and then its aliases, without the kernel. Without shape inference the outputs have
// no shapes before they are computed.
//
// onnxruntime makes all of them anew for every session, and most of the time goes into types of inputs: 20 inputs of
// any type take 15 times as long as one variadic input. So aliases have one input, whose nodes have no gaps.
std::vector<RegisteredOperator> DescribeOperators(const ort::OrtApi* api, const CellOperator& cell, bool infers_shapes);

// The operator and its aliases.
template <typename Kernel>
std::vector<RegisteredOperator> MakeOperators(const ort::OrtApi* api, const CellOperator& cell, bool infers_shapes) {
  std::vector<RegisteredOperator> ops = DescribeOperators(api, cell, infers_shapes);
  for (RegisteredOperator& op : ops) SetKernel<Kernel>(&op);
  return ops;
}

}  // namespace rnnqc

#endif  // RNNQC_OPS_CELL_OPERATOR_H_
