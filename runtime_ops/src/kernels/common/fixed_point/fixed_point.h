#ifndef RNNQC_KERNELS_COMMON_FIXED_POINT_FIXED_POINT_H_
#define RNNQC_KERNELS_COMMON_FIXED_POINT_FIXED_POINT_H_

#include <cstdint>

#include "kernels/common/packing.h"

namespace rnnqc {

// The elementwise part of the arithmetic "grid". Columns of a row are planar here: [gates][units padded to blocks],
// zeros in the padding. Every operation on a Real is one IEEE operation in the order written.

// kHalfEvenUp: half to even above zero, halves up below.
enum class GridRounding { kHalfEven, kHalfAway, kHalfUp, kFloor, kCeil, kHalfEvenUp, kTowardZero };

// v -> scale * (limit(round(v / scale + offset), low, high) - offset); scale 0 passes v on. NaN goes to a limit.
// |low|, |high| <= 2^33, or 2^21 for float. `low` and `high` are raised by `offset`.
template <typename Real>
struct GridQuantizer {
  Real scale;
  Real inverse;  // 1 / scale where that is exact (a power of two), else 0
  Real low;
  Real high;
  Real offset;
  GridRounding rounding;
};

// One row of a product: exact sums, in block order, made of up to four planes of bytes, and what follows them:
//
//   sum = factor[0] * acc[0] + ... - zero_point * row_sum + start, limited to saturation_low .. saturation_high
//   out = Q_gate(Real(sum) * multiplier + bias)
//
// Whole numbers below 2^53 everywhere up to Real(sum).
template <typename Real>
struct GridJoinArgs {
  int64_t blocks;  // of units
  int64_t gates;
  int64_t planes;
  const int32_t* acc[4];  // block order
  double factor[4];
  const double* start;       // planar; null if acc contains it
  const double* zero_point;  // planar, or null
  double row_sum;
  bool saturates;
  double saturation_low;
  double saturation_high;
  const Real* multiplier;                // planar
  const Real* bias;                      // planar; null for none
  const GridQuantizer<Real>* quantizer;  // of the gates
  Real* out;                             // planar
};

// Arguments common to the steps of all cells, from pre-activations to hidden codes, for one row.
template <typename Real>
struct GridStepArgs {
  int64_t units;     // padded
  const Real* p;     // planar: the input's share
  Real* g;           // planar: the hidden state's share; changed
  const Real* bias;  // planar: added to the sum of both; null for none
  Real gate_min[kGates];
  Real gate_max[kGates];
  GridQuantizer<Real> acc[kGates];
  bool limited;                     // whether gate_min and gate_max count
  const float* gate_table[kGates];  // the entry of multiple 0
  GridQuantizer<Real> hidden;
  int32_t hidden_zero_point;
  Real* scratch;  // [units]
  float* y;       // [units]
  uint8_t* high;  // [units], upper bytes of the codes; null for codes of 8 bits
  uint8_t* low;   // [units], codes or their lower bytes
};

// Gates i, o, f, c.
template <typename Real>
struct GridLstmArgs : GridStepArgs<Real> {
  const Real* peephole;  // planar, gates i, o, f; null for none
  bool input_forget;
  Real one;
  GridQuantizer<Real> kept;
  GridQuantizer<Real> added;
  GridQuantizer<Real> cell;
  const float* cell_table;  // the entry of multiple 0
  bool rounded_output;
  Real* c;  // [units], real values; in and out
};

// Gates z, r, h; `y` has the state h and gets the next one, limited to +-largest_state. A step is gru_gates and then
// gru_output, which finds in `g` gate z's values and gate h's share of the hidden state. gru_gates makes the latter if
// there is a hidden_bias (linear_before_reset); if not, it writes the codes of r * h, and their product has to follow.
struct GridGruArgs : GridStepArgs<double> {
  const double* hidden_bias;    // [units], or null
  GridQuantizer<double> reset;  // of r * (g_h + hidden_bias), or of r * h
  int32_t reset_zero_point;
  uint8_t* reset_high;  // as `high` and `low`
  uint8_t* reset_low;
  GridQuantizer<double> kept;
  GridQuantizer<double> added;
  GridQuantizer<double> state;
  double largest_state;
};

// One row of real values, NaN counting as 0: their multiples of the scale, and codes unless `low` is null.
template <typename Real>
struct GridCodesArgs {
  int64_t n;
  const float* x;
  GridQuantizer<Real> quantizer;
  int32_t zero_point;
  Real* multiples;
  uint8_t* high;  // as in a step
  uint8_t* low;
};

template <typename Real>
struct GridKernels {
  void (*join)(const GridJoinArgs<Real>& args);
  void (*codes)(const GridCodesArgs<Real>& args);
  void (*lstm_step)(const GridLstmArgs<Real>& args);
  // In binary64, whatever Real is.
  void (*gru_gates)(const GridGruArgs& args);
  void (*gru_output)(const GridGruArgs& args);
  void (*rnn_step)(const GridStepArgs<double>& args);
};

// One for each of the files grid_<isa>.cc.
template <typename Real>
GridKernels<Real> GridKernelsPortable();
template <typename Real>
GridKernels<Real> GridKernelsAvx2();
template <typename Real>
GridKernels<Real> GridKernelsAvx512();

// The kernels to use with the matmuls of this instruction set, a name of kernels.inc.
template <typename Real>
const GridKernels<Real>& SelectGridKernels(const char* isa);

}  // namespace rnnqc

#endif  // RNNQC_KERNELS_COMMON_FIXED_POINT_FIXED_POINT_H_
