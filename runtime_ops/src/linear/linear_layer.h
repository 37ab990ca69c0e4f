#ifndef RNNQC_LINEAR_LINEAR_LAYER_H_
#define RNNQC_LINEAR_LINEAR_LAYER_H_

#include <cstdint>

#include "cells/driver/cell_config.h"
#include "cells/driver/cell_run.h"
#include "cells/driver/scratch.h"
#include "kernels/kernel_table.h"

namespace rnnqc {

// The attributes of a linear layer.
struct LinearConfig {
  CodeMode x_mode = CodeMode::kDynamicRow;
  float x_scale = 0;
  int64_t x_zero_point = 128;
  int64_t bits = 4;        // of the numbers of packed W
  int64_t group_size = 0;  // rows of packed W that share a multiplier; 0 without
  int64_t codebook = 0;    // 1: groups of packed W choose sets of values
};

// One call: y [rows, N] of x [rows, K].
struct LinearArgs {
  int64_t rows;
  const float* x_float;    // either this
  const uint8_t* x_codes;  // or this, for x_mode codes
  float* y;
};

// y = (f32(sum of products) * row scale) * multiplier + bias, with the weights packed.
class LinearLayer {
 public:
  // W [K, N] as one gate of N units; `multiplier` and `bias` have N values.
  LinearLayer(const LinearConfig& config, const KernelTable& kernels, const Matrix& w, const float* multiplier,
              const float* bias);

  int64_t input_size() const { return w_.k; }
  int64_t output_size() const { return columns_; }
  void Run(const LinearArgs& args, Scratch* scratch, Parallel* parallel) const;

 private:
  struct Call;
  // How the work of a call is divided; results do not depend on it.
  struct Division {
    int64_t row_parts;
    int64_t column_parts;
  };

  Division Divide(int64_t rows) const;
  // Quantizes rows [begin, end), and multiplies them by blocks of columns.
  void Quantize(const Call& call, int64_t begin, int64_t end) const;
  void Project(const Call& call, int64_t begin, int64_t end, int64_t block_begin, int64_t block_end) const;
  // The last block, some of whose columns are beyond the matrix.
  void ProjectLastBlock(const Call& call, ProjectArgs project, int64_t begin, int64_t end) const;
  void RunRows(const Call& call, int64_t begin, int64_t end) const;

  // One of `parts` parts of the work, which may run at the same time.
  using Work = void (LinearLayer::*)(const Call& call, int64_t part, int64_t parts) const;
  void RunParts(const Call& call, Work work, int64_t parts, Parallel* parallel) const;
  void RowsPart(const Call& call, int64_t part, int64_t parts) const;
  void QuantizePart(const Call& call, int64_t part, int64_t parts) const;
  void ColumnsPart(const Call& call, int64_t part, int64_t parts) const;

  const LinearConfig& config_;  // which outlives it
  const KernelTable& kernels_;
  const int64_t columns_;
  const int64_t blocks_;
  const PackedMatrix w_;
  const AlignedArray<float> multiplier_;
  const AlignedArray<float> bias_;
};

}  // namespace rnnqc

#endif  // RNNQC_LINEAR_LINEAR_LAYER_H_
