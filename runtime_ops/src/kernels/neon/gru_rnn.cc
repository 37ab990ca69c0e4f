// The cells without a cell state: four units to a register.

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "kernels/common/compiler.h"
#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

#include "kernels/neon/linear.inc"

constexpr int64_t kMostBlocks = 1;

struct Floats {
  float32x4_t part[4];
};

template <typename Value>
inline Floats ForEachPart(const Value& value) {
  return {{value(0), value(1), value(2), value(3)}};
}

inline Floats Load(const float* from) {
  return ForEachPart([from](int i) { return vld1q_f32(from + 4 * i); });
}
inline void Store(float* to, const Floats& value) {
  for (int i = 0; i < 4; ++i) vst1q_f32(to + 4 * i, value.part[i]);
}
inline Floats Sums(const int32_t* from) {
  return ForEachPart([from](int i) { return vcvtq_f32_s32(vld1q_s32(from + 4 * i)); });
}
inline Floats Splat(float value) {
  return ForEachPart([value](int) { return vdupq_n_f32(value); });
}
inline Floats Add(const Floats& a, const Floats& b) {
  return ForEachPart([&](int i) { return vaddq_f32(a.part[i], b.part[i]); });
}
inline Floats Subtract(const Floats& a, const Floats& b) {
  return ForEachPart([&](int i) { return vsubq_f32(a.part[i], b.part[i]); });
}
inline Floats Multiply(const Floats& a, const Floats& b) {
  return ForEachPart([&](int i) { return vmulq_f32(a.part[i], b.part[i]); });
}
inline Floats Limit(const Floats& v, const Floats& lo, const Floats& hi) {
  return ForEachPart([&](int i) { return vmaxnmq_f32(vminnmq_f32(v.part[i], hi.part[i]), lo.part[i]); });
}

inline Floats Divide(const Floats& a, const Floats& b) {
  return ForEachPart([&](int i) { return vdivq_f32(a.part[i], b.part[i]); });
}
inline Floats Max(const Floats& a, const Floats& b) {
  return ForEachPart([&](int i) { return vbslq_f32(vcgtq_f32(a.part[i], b.part[i]), a.part[i], b.part[i]); });
}
inline Floats Min(const Floats& a, const Floats& b) {
  return ForEachPart([&](int i) { return vbslq_f32(vcltq_f32(a.part[i], b.part[i]), a.part[i], b.part[i]); });
}
inline Floats Magnitude(const Floats& v) {
  return ForEachPart([&](int i) { return vabsq_f32(v.part[i]); });
}
inline Floats WhereNegative(const Floats& v, const Floats& a, const Floats& b) {
  return ForEachPart([&](int i) { return vbslq_f32(vcltzq_f32(v.part[i]), a.part[i], b.part[i]); });
}
inline Floats WhereGreater(const Floats& v, const Floats& limit) {
  return ForEachPart(
      [&](int i) { return vbslq_f32(vcgtq_f32(v.part[i], limit.part[i]), v.part[i], vdupq_n_f32(0.0f)); });
}
inline Floats Number(const Floats& v) {
  return ForEachPart([&](int i) { return vbslq_f32(vceqq_f32(v.part[i], v.part[i]), v.part[i], vdupq_n_f32(0.0f)); });
}
inline Floats Entries(const float* table, const Floats& v) {
  return ForEachPart([&](int i) { return Entries(table, vcvtq_s32_f32(v.part[i])); });
}

inline void StoreFirst(float* to, int64_t count, const Floats& value) {
  if (count >= kBlockUnits) return Store(to, value);
  float all[kBlockUnits];
  Store(all, value);
  std::memcpy(to, all, static_cast<size_t>(count) * sizeof(float));
}

const LinearTables kNoTables{};

template <bool kLinear>
class Tables {
 public:
  explicit Tables(const HiddenCellArgs& args)
      : args_(args),
        linear_(kLinear ? *args.linear : kNoTables),
        planes_(linear_),
        form_(planes_, linear_.gate_shift) {}

  template <typename GateOf>
  void Look(Floats* v, int64_t count, const GateOf& gate_of) const {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t gate = gate_of(i);
      int32x4_t index[4];
      for (int k = 0; k < 4; ++k) {
        index[k] = vcvtq_s32_f32(rnnqc::Limit(v[i].part[k], args_.gate_min[gate], args_.gate_max[gate]));
      }
      if (!kLinear) {
        for (int k = 0; k < 4; ++k) v[i].part[k] = Entries(args_.gate_table[gate], index[k]);
        continue;
      }
      // Indices up to 2^16 - 1 and the zero up to 2^15: codes fit into int16.
      int16x8_t low = ToCodes(index[0], index[1], linear_.gate_zero);
      int16x8_t high = ToCodes(index[2], index[3], linear_.gate_zero);
      form_(&low, &high);
      v[i] = {{LowFloats(low), HighFloats(low), LowFloats(high), HighFloats(high)}};
      const float32x4_t offset = vdupq_n_f32(linear_.gate_offset[gate]);
      for (int k = 0; k < 4; ++k) {
        v[i].part[k] = vaddq_f32(vmulq_n_f32(v[i].part[k], linear_.gate_scale[gate]), offset);
      }
    }
  }

 private:
  const HiddenCellArgs& args_;
  const LinearTables& linear_;
  Planes planes_;
  LinearForm form_;
};

class Codes {
 public:
  explicit Codes(const HiddenCellArgs& args) : grid_(args.h_scale, args.h_zero_point) {}

  void Store(const Floats* values, int64_t count, uint8_t* h) const {
    for (int64_t b = 0; b < count; ++b) vst1q_u8(h + b * kBlockUnits, grid_(values[b].part));
  }

 private:
  Grid grid_;
};

template <typename Visit>
inline void InChunks(int64_t begin, int64_t end, const Visit& visit) {
  for (int64_t block = begin; block < end; ++block) visit(block, int64_t{1});
}

#define RNNQC_HIDDEN_UNROLL
#include "kernels/common/gru_rnn.inc"

template <typename Step>
void Run(const HiddenCellArgs& args, int64_t, const Step& step) {
  RunTables<Tables>(args, step);
}

}  // namespace

RNNQC_HIDDEN_KERNELS(neon)

}  // namespace rnnqc
