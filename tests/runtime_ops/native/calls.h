#ifndef RNNQC_TESTS_NATIVE_CALLS_H_
#define RNNQC_TESTS_NATIVE_CALLS_H_

#include <cstdint>

#include "kernels/common/packing.h"
#include "kernels/kernel_table.h"

namespace rnnqc {

// Arguments of a step's kernel from a call of the ABI of kernels.cc; both name what all steps have alike.
template <typename Args, typename Call>
Args StepArgsOf(const Call& call, int64_t gates = kGates, int64_t acc_gates = kGates) {
  Args args{};
  args.rows = call.rows;
  args.units = call.units;
  args.block_begin = call.block_begin;
  args.block_end = call.block_end;
  args.acc = call.acc;
  args.acc_stride = ColumnCount(call.units, acc_gates);
  args.p = call.p;
  args.p_stride = ColumnCount(call.units, gates);
  args.h_multiplier = call.h_multiplier;
  args.y = call.y;
  args.h = call.h;
  args.h_stride = BlockCount(call.units) * kBlockUnits;
  return args;
}

// Tables of gates, and hidden codes.
template <typename Call, typename Args>
void SetGates(const Call& call, int64_t gates, Args* args) {
  for (int64_t gate = 0; gate < gates; ++gate) {
    args->gate_min[gate] = call.gate_min[gate];
    args->gate_max[gate] = call.gate_max[gate];
    args->gate_table[gate] = call.gate_table[gate];
  }
  args->h_scale = call.h_scale;
  args->h_reciprocal = FindReciprocal(call.h_scale);
  args->h_zero_point = call.h_zero_point;
}

template <typename Call>
TableExtent ExtentOf(const Call& call, int64_t gates) {
  TableExtent tables{};
  tables.gates = gates;
  for (int64_t gate = 0; gate < gates; ++gate) {
    tables.gate_table[gate] = call.gate_table[gate];
    tables.gate_max[gate] = call.gate_max[gate];
  }
  return tables;
}

}  // namespace rnnqc

#endif  // RNNQC_TESTS_NATIVE_CALLS_H_
