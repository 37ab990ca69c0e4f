#ifndef RNNQC_CELLS_FIXED_POINT_FIXED_POINT_RUN_H_
#define RNNQC_CELLS_FIXED_POINT_FIXED_POINT_RUN_H_

#include <cstdint>
#include <initializer_list>

#include "cells/driver/cell_run.h"
#include "cells/driver/sequence_driver.h"
#include "cells/fixed_point/product.h"
#include "kernels/common/fixed_point/fixed_point.h"
#include "kernels/kernel_table.h"

namespace rnnqc {

// Groups of rows that may run at the same time; results do not depend on it. `hidden` are the recurrent matrices.
int64_t GroupsOfGridRows(const GridProduct& w, std::initializer_list<const GridProduct*> hidden, const CellArgs& args);

template <typename Real>
struct PackedGrid {
  GridProduct w;
  GridProduct r;
  AlignedArray<Real> x_multiplier;  // planar, and so on
  AlignedArray<Real> h_multiplier;  // of the columns of `r`
  AlignedArray<Real> bias;

  int64_t input_size() const { return w.planes[0].k; }
  Division Divide(const CellConfig&, const KernelTable&, const CellArgs& args, int64_t) const {
    return {GroupsOfGridRows(w, {&r}, args), 1};
  }
};

// Everything but `r` and h_multiplier. Checks the zero points of both matrices: throws std::invalid_argument for one
// that is no code of its matrix.
template <typename Real>
void PackGridInputSide(const CellConfig& config, const KernelTable& kernels, const CellParameters& parameters,
                       PackedGrid<Real>* packed);
// The rest, of a cell whose whole R multiplies the hidden codes.
template <typename Real>
void PackGridHiddenSide(const CellConfig& config, const KernelTable& kernels, const CellParameters& parameters,
                        PackedGrid<Real>* packed);

// The fixed-point arithmetic: codes and projection of the input, products of codes. A subclass has the steps of its
// cell.
template <typename Real>
class GridRun : public SequenceDriver {
 protected:
  GridRun(const CellConfig& config, const KernelTable& kernels, const PackedGrid<Real>& packed, const CellArgs& args,
          int64_t first, int64_t stride);
  ~GridRun() = default;

  // Rows of codes: bytes, or two rows of bytes `stride` apart. `k` of each are not padding.
  struct Codes {
    uint8_t* bytes;
    int64_t k;
    int64_t stride;
    int64_t planes;

    uint8_t* row(int64_t r) const { return bytes + r * planes * stride; }
    uint8_t* high(int64_t r) const { return planes == 2 ? row(r) : nullptr; }
    uint8_t* low(int64_t r) const { return row(r) + (planes - 1) * stride; }
  };

  // The conversion of a matmul's sums: Q_gate(sums * multiplier + bias), to rows of gates that are `stride` apart.
  struct Target {
    const Real* multiplier;
    const Real* bias;  // or null
    const GridQuantizer<Real>* quantizers;
    Real* values;
    int64_t stride;
  };

  // Before InitializeStates() hidden codes are those of initial_h, and rows of y zeros.

  void Multiply(const GridProduct& product, const Codes& codes, int64_t rows, const Target& target);
  // Codes of `n` values; NaN counts as 0.
  void Encode(const float* values, int64_t n, const GridPoint& point, uint8_t* high, uint8_t* low);
  // Rounds values to the quantizer's format.
  void Round(const float* values, int64_t n, const GridPoint& point, Real* real);
  // Sets the arguments that all cells have, except those of a row.
  void PrepareStep(GridStepArgs<Real>* step, int64_t unused_gate = -1) const;
  void SetRow(int64_t r, GridStepArgs<Real>* step) const;
  // Copies the row's results of the running step to the outputs.
  void WriteRow(int64_t r) const;
  // A padded row.
  float* RowOfY(int64_t r) const { return y_ + r * units_; }
  Codes HiddenCodes() const { return {h_, hidden_, units_, h_planes_}; }
  Target HiddenShare() const { return {packed_.h_multiplier.data(), nullptr, hidden_product_, h_share_, columns_}; }

  const GridKernels<Real>& elementwise_;
  const PackedGrid<Real>& packed_;
  const int64_t blocks_;
  const int64_t units_;    // padded
  const int64_t columns_;  // planar
  GridQuantizer<Real> input_product_[kGates];
  GridQuantizer<Real> hidden_product_[kGates];
  Real* h_share_ = nullptr;  // rows of columns_

 private:
  void VisitDriverScratch(ScratchPieces& pieces) override;
  void InitializeCodes() override;
  void StartChunk() override;
  void StartStep(int64_t row) override { p_step_ = p_ + row * columns_; }
  const float* LastY(int64_t r) const override { return RowOfY(r); }
  void SetSaturation(GridJoinArgs<Real>* join) const;

  const int64_t input_;
  const int64_t x_stride_;
  const int64_t x_planes_;
  const int64_t h_planes_;
  const int64_t acc_columns_;

  uint8_t* x_codes_ = nullptr;
  float* x_scaled_ = nullptr;  // a row of the input times x_factor
  Real* p_ = nullptr;
  const Real* p_step_ = nullptr;  // the input's share of the running step
  int32_t* acc_ = nullptr;
  uint8_t* h_ = nullptr;
  float* y_ = nullptr;
  Real* values_ = nullptr;
  Real* scratch_ = nullptr;
};

}  // namespace rnnqc

#endif  // RNNQC_CELLS_FIXED_POINT_FIXED_POINT_RUN_H_
