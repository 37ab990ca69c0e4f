#include "cells/fixed_point/product.h"

#include <stdexcept>
#include <string>

namespace rnnqc {
namespace {

PackedMatrix PackPlane(const KernelTable& kernels, const int8_t* weights, const WeightMatrix& shape,
                       int64_t zero_point) {
  const Matrix matrix{weights, shape.k, shape.units, nullptr, 0, shape.gates};
  return PackMatrix(Formats(kernels), Width::kEight, matrix, static_cast<int32_t>(zero_point));
}

}  // namespace

void CheckZeroPoints(const char* name, const WeightMatrix& matrix) {
  const int32_t low = matrix.wide != nullptr ? INT16_MIN : INT8_MIN;
  const int32_t high = matrix.wide != nullptr ? INT16_MAX : INT8_MAX;
  for (int64_t j = 0; matrix.zero_point != nullptr && j < matrix.columns(); ++j) {
    if (matrix.zero_point[j] >= low && matrix.zero_point[j] <= high) continue;
    throw std::invalid_argument("input " + std::string(name) + "[" + std::to_string(j) + "] is " +
                                std::to_string(matrix.zero_point[j]) + ", expected a code of the weights, " +
                                std::to_string(low) + " .. " + std::to_string(high));
  }
}

// With S = sum x W, X = sum (x - z), C = sum W and K rows,
//
//   sum (x - z) (W - w) = S - z C - w X.
//
// For 16-bit weights S = 256 S_high + S_low + 128 (X + K z): 128 K z belongs to `start`, 128 X to the zero point.
GridProduct PackGridProduct(const KernelTable& kernels, const WeightMatrix& matrix, int64_t code_zero_point,
                            bool wide_codes) {
  const int64_t columns = matrix.columns();
  GridProduct product;
  product.gates = matrix.gates;
  product.code_zero_point = code_zero_point;
  if (matrix.wide == nullptr && matrix.zero_point == nullptr && !wide_codes) {
    product.planes.push_back(PackPlane(kernels, matrix.weights, matrix, code_zero_point));
    return product;
  }
  product.no_start.assign(static_cast<size_t>(ColumnCount(matrix.units, matrix.gates)), 0);
  std::vector<double> start(static_cast<size_t>(columns), 0.0);
  std::vector<double> zero_point(static_cast<size_t>(columns), 0.0);
  if (matrix.wide == nullptr) {
    product.planes.push_back(PackPlane(kernels, matrix.weights, matrix, 0));
  } else {
    std::vector<int8_t> high(static_cast<size_t>(matrix.k * columns));
    std::vector<int8_t> low(high.size());
    for (size_t i = 0; i < high.size(); ++i) {
      high[i] = static_cast<int8_t>(matrix.wide[i] >> 8);
      low[i] = static_cast<int8_t>((matrix.wide[i] & 255) - 128);
    }
    product.planes.push_back(PackPlane(kernels, high.data(), matrix, 0));
    product.planes.push_back(PackPlane(kernels, low.data(), matrix, 0));
  }
  const int64_t offset = matrix.wide == nullptr ? 0 : 128;
  std::vector<int64_t> sums(static_cast<size_t>(columns), 0);
  for (int64_t i = 0; i < matrix.k * columns; ++i) {
    sums[static_cast<size_t>(i % columns)] += matrix.wide != nullptr ? matrix.wide[i] : matrix.weights[i];
  }
  for (int64_t j = 0; j < columns; ++j) {
    const int64_t sum = sums[static_cast<size_t>(j)];
    const int64_t own = matrix.zero_point != nullptr ? matrix.zero_point[j] : 0;
    start[static_cast<size_t>(j)] = static_cast<double>((offset * matrix.k - sum) * code_zero_point);
    zero_point[static_cast<size_t>(j)] = static_cast<double>(own - offset);
  }
  product.start = PlanarArray<double>(start.data(), matrix.gates, matrix.units);
  if (offset != 0 || matrix.zero_point != nullptr) {
    product.zero_point = PlanarArray<double>(zero_point.data(), matrix.gates, matrix.units);
  }
  return product;
}

}  // namespace rnnqc
