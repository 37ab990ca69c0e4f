// Plain C++ that compilers vectorise for the baseline of the architecture.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/common/compiler.h"
#include "kernels/common/rounding.h"
#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

constexpr int64_t kMostBlocks = 1;

struct Floats {
  float unit[kBlockUnits];
};

template <typename Value>
inline Floats ForEachUnit(const Value& value) {
  Floats result;
  for (int64_t u = 0; u < kBlockUnits; ++u) result.unit[u] = value(u);
  return result;
}

inline Floats Load(const float* from) {
  return ForEachUnit([from](int64_t u) { return from[u]; });
}
inline void Store(float* to, const Floats& value) { std::memcpy(to, value.unit, sizeof(value.unit)); }
inline Floats Sums(const int32_t* from) {
  return ForEachUnit([from](int64_t u) { return static_cast<float>(from[u]); });
}
inline Floats Splat(float value) {
  return ForEachUnit([value](int64_t) { return value; });
}
inline void StoreFirst(float* to, int64_t count, const Floats& value) {
  std::memcpy(to, value.unit, static_cast<size_t>(count < kBlockUnits ? count : kBlockUnits) * sizeof(float));
}
inline Floats Add(const Floats& a, const Floats& b) {
  return ForEachUnit([&](int64_t u) { return a.unit[u] + b.unit[u]; });
}
inline Floats Subtract(const Floats& a, const Floats& b) {
  return ForEachUnit([&](int64_t u) { return a.unit[u] - b.unit[u]; });
}
inline Floats Multiply(const Floats& a, const Floats& b) {
  return ForEachUnit([&](int64_t u) { return a.unit[u] * b.unit[u]; });
}
inline Floats Divide(const Floats& a, const Floats& b) {
  return ForEachUnit([&](int64_t u) { return a.unit[u] / b.unit[u]; });
}
inline Floats Max(const Floats& a, const Floats& b) {
  return ForEachUnit([&](int64_t u) { return a.unit[u] > b.unit[u] ? a.unit[u] : b.unit[u]; });
}
inline Floats Min(const Floats& a, const Floats& b) {
  return ForEachUnit([&](int64_t u) { return a.unit[u] < b.unit[u] ? a.unit[u] : b.unit[u]; });
}
inline Floats Magnitude(const Floats& v) {
  return ForEachUnit([&](int64_t u) { return std::fabs(v.unit[u]); });
}
inline Floats WhereNegative(const Floats& v, const Floats& a, const Floats& b) {
  return ForEachUnit([&](int64_t u) { return v.unit[u] < 0 ? a.unit[u] : b.unit[u]; });
}
inline Floats WhereGreater(const Floats& v, const Floats& limit) {
  return ForEachUnit([&](int64_t u) { return v.unit[u] > limit.unit[u] ? v.unit[u] : 0.0f; });
}
inline Floats Number(const Floats& v) {
  return ForEachUnit([&](int64_t u) { return v.unit[u] == v.unit[u] ? v.unit[u] : 0.0f; });
}
inline Floats Entries(const float* table, const Floats& v) {
  return ForEachUnit([&](int64_t u) { return table[static_cast<int32_t>(v.unit[u])]; });
}
inline Floats Limit(const Floats& v, const Floats& lo, const Floats& hi) {
  return ForEachUnit([&](int64_t u) { return rnnqc::Limit(v.unit[u], lo.unit[u], hi.unit[u]); });
}

class Tables {
 public:
  explicit Tables(const HiddenCellArgs& args) : args_(args) {}

  template <typename GateOf>
  void Look(Floats* v, int64_t count, const GateOf& gate_of) const {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t gate = gate_of(i);
      int32_t index[kBlockUnits];
      for (int64_t u = 0; u < kBlockUnits; ++u) {
        index[u] = static_cast<int32_t>(rnnqc::Limit(v[i].unit[u], args_.gate_min[gate], args_.gate_max[gate]));
      }
      const float* table = args_.gate_table[gate];
      for (int64_t u = 0; u < kBlockUnits; ++u) v[i].unit[u] = table[index[u]];
    }
  }

 private:
  const HiddenCellArgs& args_;
};

class Codes {
 public:
  explicit Codes(const HiddenCellArgs& args) : scale_(args.h_scale), zero_point_(args.h_zero_point) {}

  void Store(const Floats* values, int64_t count, uint8_t* h) const {
    const float lo = static_cast<float>(-zero_point_);
    const float hi = static_cast<float>(255 - zero_point_);
    for (int64_t b = 0; b < count; ++b) {
      for (int64_t u = 0; u < kBlockUnits; ++u) {
        h[b * kBlockUnits + u] = static_cast<uint8_t>(CodeOffset(values[b].unit[u], scale_, lo, hi) + zero_point_);
      }
    }
  }

 private:
  const float scale_;
  const int32_t zero_point_;
};

template <typename Visit>
inline void InChunks(int64_t begin, int64_t end, const Visit& visit) {
  for (int64_t block = begin; block < end; ++block) visit(block, int64_t{1});
}

#define RNNQC_HIDDEN_UNROLL
#include "kernels/common/gru_rnn.inc"

template <typename Step>
void Run(const HiddenCellArgs& args, int64_t, const Step& step) {
  ForEachChunk<Tables>(args, step);
}

}  // namespace

RNNQC_HIDDEN_KERNELS(portable)

}  // namespace rnnqc
