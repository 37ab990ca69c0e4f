#ifndef RNNQC_KERNELS_COMMON_ACTIVATION_H_
#define RNNQC_KERNELS_COMMON_ACTIVATION_H_

#include <cstdint>

namespace rnnqc {

enum class Kind {
  kTable,
  kReluTable,
  kRelu,
  kLeakyRelu,
  kThresholdedRelu,
  kAffine,
  kHardSigmoid,
  kSoftsign,
};

// An activation without its limits and its table. For a limited pre-activation v it is
//
//   kTable            table[trunc(v)]
//   kReluTable        max(v, 0) + table[trunc(limit(v * index_scale + (index_size / 2 + 0.5), 0, index_size - 0.5))]
//   kRelu             max(v, 0)
//   kLeakyRelu        (v < 0 ? alpha * v : v) + 0
//   kThresholdedRelu  (v > alpha ? v : 0) + 0
//   kAffine           alpha * v + beta
//   kHardSigmoid      min(max(alpha * v + beta, 0), 1)
//   kSoftsign         v / (1 + |v|)
//
// where max(a, b) is a if a > b, else b, and min is a if a < b, else b: NaN gives b.
struct Activation {
  Kind kind;
  float alpha;
  float beta;
  float index_scale;
  int32_t index_size;  // even
};

}  // namespace rnnqc

#endif  // RNNQC_KERNELS_COMMON_ACTIVATION_H_
