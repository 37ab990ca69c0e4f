// The part of the ABI of kernels.cc for 16-bit codes.

#include <cstdint>

#include "export.h"
#include "kernels/common/packing.h"
#include "kernels/dispatch.h"

extern "C" {

RNNQC_EXPORT void rnnqc_test_quantize_row_16(const char* isa, const float* x, int64_t n, float scale,
                                             int32_t zero_point, uint8_t* high, uint8_t* low) {
  rnnqc::FindTable(isa)->quantize_row_16(x, n, scale, zero_point, high, low);
}

// rnnqc::JoinArgs, with rows of `columns` columns.
struct rnnqc_test_join_rows {
  int64_t rows;
  int64_t columns;
  int64_t block_begin;
  int64_t block_end;
  const int32_t* acc;
  const int32_t* start;
  const int32_t* zero_point;
  const float* row_scale;
  const float* multiplier;
  const float* bias;
  int64_t bias_stride;
  float* p;
};

RNNQC_EXPORT void rnnqc_test_join(const char* isa, const rnnqc_test_join_rows* join) {
  rnnqc::FindTable(isa)->join({join->rows, join->block_begin, join->block_end, join->acc, join->columns, join->start,
                               join->zero_point, join->row_scale, join->multiplier, join->bias, join->bias_stride,
                               join->p, join->columns});
}

}  // extern "C"
