// Plain C++ that compilers vectorise for the baseline of the architecture.

#include <cstdint>

#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

// Four columns of int16 weights, k_padded apart; k_padded is a multiple of 16.
inline void Dot4(const uint8_t* __restrict a, const int16_t* __restrict w, int64_t k_padded, int32_t* __restrict sums) {
  const int16_t* w0 = w;
  const int16_t* w1 = w + k_padded;
  const int16_t* w2 = w + 2 * k_padded;
  const int16_t* w3 = w + 3 * k_padded;
  int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
  for (int64_t k = 0; k < k_padded; ++k) {
    const int16_t value = a[k];
    s0 += value * w0[k];
    s1 += value * w1[k];
    s2 += value * w2[k];
    s3 += value * w3[k];
  }
  sums[0] = s0;
  sums[1] = s1;
  sums[2] = s2;
  sums[3] = s3;
}

}  // namespace

void u8s8_s32_recurrent_1x4__portable(const RecurrentArgs& args) {
  const MatmulArgs& m = args.matmul;
  const int16_t* weights = static_cast<const int16_t*>(m.weights);
  for (int64_t j = m.block_begin * kBlockColumns; j < m.block_end * kBlockColumns; j += 4) {
    for (int64_t row = 0; row < m.rows; ++row) {
      int32_t sums[4];
      Dot4(m.a + row * m.a_stride, weights + j * m.k_padded, m.k_padded, sums);
      int32_t* acc = args.acc + row * args.acc_stride + j;
      for (int64_t i = 0; i < 4; ++i) acc[i] = m.start[j + i] + sums[i];
    }
  }
}

void u8s8_f32_project_1x4__portable(const ProjectArgs& args) {
  const MatmulArgs& m = args.matmul;
  const int16_t* weights = static_cast<const int16_t*>(m.weights);
  for (int64_t j = m.block_begin * kBlockColumns; j < m.block_end * kBlockColumns; j += 4) {
    for (int64_t row = 0; row < m.rows; ++row) {
      int32_t sums[4];
      Dot4(m.a + row * m.a_stride, weights + j * m.k_padded, m.k_padded, sums);
      const int32_t zero_point = args.row_zero_point != nullptr ? args.row_zero_point[row] : 1;
      float* p = args.p + row * args.p_stride + j;
      for (int64_t i = 0; i < 4; ++i) {
        float value = static_cast<float>(zero_point * m.start[j + i] + sums[i]);
        if (args.row_scale != nullptr) value = value * args.row_scale[row];
        value = value * args.multiplier[j + i];
        p[i] = value + args.bias[j + i];
      }
    }
  }
}

}  // namespace rnnqc
