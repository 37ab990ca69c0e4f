#ifndef RNNQC_KERNELS_COMMON_PACKING_H_
#define RNNQC_KERNELS_COMMON_PACKING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace rnnqc {

// Units are processed in blocks of 16, columns of weights in blocks of 64. Everything that has one entry per gate and
// unit (multipliers, bias, accumulators, pre-activations) is kept in *block order*, [blocks of units][gates][16 units],
// padded with zeros to whole blocks of columns. The four gates of LSTM make one block of columns of a block of units.
//
// In a *short tail* the last block's gates, of at most kShortUnits units, stand side by side in 16 columns,
// [gates][kShortUnits], and no others: one register holds all of them. Only kernels of an LSTM of tables know of it.
constexpr int64_t kGates = 4;  // of LSTM: i, o, f, c; the default below
constexpr int64_t kBlockUnits = 16;
constexpr int64_t kBlockColumns = 64;
constexpr int64_t kShortUnits = kBlockUnits / kGates;
constexpr size_t kAlignment = 64;

constexpr int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
constexpr int64_t BlockCount(int64_t units) { return (units + kBlockUnits - 1) / kBlockUnits; }

// Columns in block order, and their blocks.
constexpr int64_t ColumnCount(int64_t units, int64_t gates) {
  return RoundUp(BlockCount(units) * gates * kBlockUnits, kBlockColumns);
}
constexpr bool MayHaveShortTail(int64_t units, int64_t gates) {
  return gates == kGates && units % kBlockUnits != 0 && units % kBlockUnits <= kShortUnits;
}

constexpr int64_t ColumnBlockCount(int64_t units, int64_t gates) { return ColumnCount(units, gates) / kBlockColumns; }

// From one row of sums or of pre-activations to the next: the same columns of 16 rows do not meet in one set of a
// cache.
constexpr int64_t SumStride(int64_t columns) { return columns + kBlockUnits; }

// How a weight matrix W [k, gates * units] is laid out for a kernel. "column" below is the position in block order,
// "block" one of 64 columns, "group" a quarter of it, which belongs to one gate.
enum class PackedFormat {
  // int16, one row of consecutive k per column:
  //
  //   column 0 (block 0, gate i, unit 0):  w[0] w[1] ... w[k_padded - 1]
  //   column 1 (block 0, gate i, unit 1):  w[0] w[1] ... w[k_padded - 1]
  //   ...
  //
  // k padded to 16. For kernels that multiply int16 pairs along k.
  kS16Columns,
  // int8, [blocks][k_padded / 4][group][16 units][4 k]: 64 bytes hold four consecutive k of the 16 units of one gate.
  //
  //   byte       0  1  2  3 |  4  5  6  7 | ... | 60 61 62 63
  //   unit       0  0  0  0 |  1  1  1  1 | ... | 15 15 15 15
  //   k (+ 4j)   0  1  2  3 |  0  1  2  3 | ... |  0  1  2  3
  //
  // k padded to 4. For four-way dot product instructions, which add four products into each 32-bit lane.
  kS8Blocks,
  // The same with kColumnSumBytes in front of every block: int32 128 * (sum over k of W) of its columns, in block
  // order.
  // For kernels that multiply codes minus 128.
  kS8BlocksWithSums,
  // int4 in two's complement, two to a byte: [blocks][k_padded / 8][group][16 units][4 bytes]. In byte i of a unit the
  // lower half is k = 8j + i, the upper half k = 8j + 4 + i.
  //
  // k padded to 8. Four-way dot products take the halves as int8 numbers of 16 times the weight.
  kS4Blocks,
  // int4, the weights of two gates to a byte, [blocks][k_padded / 4][group / 2][16 units][4 k]: the lower half is the
  // weight of the first group + 8, the upper half that of the second one in two's complement.
  //
  // k padded to 8. Four-way dot products take bytes as they are, for 16 times the sums of the second group and what the
  // lower halves add to them, and the lower halves again.
  kS4Pairs,
  // int4 that are indices of sets (codebooks.h), counted from that of 0:
  // [blocks][8 parts][groups of 32 k][8 columns][16 bytes], the columns of a part in the order 0 4 1 5 2 6 3 7. Byte i
  // of a column has k = i in its lower half, and 16 + i in its upper one.
  //
  // k padded to 16, in memory to 32. For instructions that look up bytes. A part's group has a record of kSetRecord
  // bytes: its eight multipliers, and for j = 0 .. 3 kSets times the number of column j's set plus that of j + 4's.
  kS4Sets,
  // As kS4Pairs, of places in the table of sets (codebooks.h), counted from the first of the weight's set. Groups have
  // one byte a column, its multiplier and its set, as multipliers are laid out.
  //
  // k padded to 8. For instructions that look up bytes in a table of 64.
  kS4Places,
  // int6, [blocks][k_padded / 4][3 groups][16 units][4 k]: the upper six bits of a byte are the weight of its group in
  // two's complement, the lower two bits a part of the weight of the fourth group + 32, the lowest one in group 0.
  //
  // k padded to 8. Four-way dot products take bytes as they are, for 4 times the sums of the groups and what the lower
  // two bits add to them, and these bits again.
  kS6Blocks,
  // As kS8Blocks, but w + 128 as uint8, 128 in the padding. For four-way dot products of unsigned by unsigned numbers.
  kU8Blocks,
  // int8, [blocks][k_padded / 8][group][16 units][8 k]: eight consecutive k of two units to 16 bytes.
  //
  // k padded to 8. For matrix product instructions.
  kS8Octets,
};

constexpr int64_t kSetColumns = 8;
constexpr int64_t kSetRecord = 16;

constexpr int64_t kColumnSumBytes = kBlockColumns * static_cast<int64_t>(sizeof(int32_t));

// Allocation aligned to kAlignment; empty by default.
template <typename T>
class AlignedArray {
 public:
  AlignedArray() = default;
  explicit AlignedArray(int64_t size)
      : data_(static_cast<T*>(::operator new(static_cast<size_t>(size) * sizeof(T), std::align_val_t(kAlignment)))),
        size_(size) {}

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  int64_t size() const { return size_; }

 private:
  struct Free {
    void operator()(T* pointer) const { ::operator delete(pointer, std::align_val_t(kAlignment)); }
  };
  std::unique_ptr<T[], Free> data_;
  int64_t size_ = 0;
};

// The bits of a weight in memory; 16 for int8 weights stored as int16.
constexpr int64_t BitsOf(PackedFormat format) {
  switch (format) {
    case PackedFormat::kS4Blocks:
    case PackedFormat::kS4Pairs:
    case PackedFormat::kS4Sets:
    case PackedFormat::kS4Places:
      return 4;
    case PackedFormat::kS6Blocks:
      return 6;
    case PackedFormat::kS16Columns:
      return 16;
    case PackedFormat::kS8Blocks:
    case PackedFormat::kS8BlocksWithSums:
    case PackedFormat::kU8Blocks:
    case PackedFormat::kS8Octets:
      break;
  }
  return 8;
}

// The formats of an instruction set, by the bits that weights need.
struct PackedFormats {
  PackedFormat s8;
  PackedFormat s6;    // s8 if there is none
  PackedFormat s4;    // s8 if there is none
  PackedFormat sets;  // s8 if there is none
  // Matrices of sets with fewer weights are packed as int8, whose products take fewer instructions: reading them from
  // far caches is what takes longer.
  int64_t least_sets;
  // Columns of more bits than the others stand apart in matrices of so many weights. In smaller ones a product of their
  // own takes longer than fewer bytes save.
  int64_t least_apart = 512 * 1024;

  PackedFormat Of(int64_t bits) const { return bits <= 4 ? s4 : bits <= 6 ? s6 : s8; }
};

int64_t PaddedDepth(PackedFormat format, int64_t k);
int64_t PackedBytes(PackedFormat format, int64_t k, int64_t units, int64_t gates = kGates);

// Writes PackedBytes(format, k, units, gates) bytes; weights of n bits are -2^(n - 1) .. 2^(n - 1) - 1.
void PackWeights(PackedFormat format, const int8_t* weights, int64_t k, int64_t units, void* packed,
                 int64_t gates = kGates, bool short_tail = false);

// Groups of `group_size` consecutive k, a multiple of kGroupDepth, whose weights are multiples of a number for each
// column. The packed numbers stand in the order [blocks][groups][64 columns], 1 in the padding.
constexpr int64_t kGroupDepth = 32;
constexpr int64_t kLargestMultiplier = 18;
constexpr int64_t GroupCount(int64_t k, int64_t group_size) { return (k + group_size - 1) / group_size; }
void PackMultipliers(const uint8_t* multipliers, int64_t groups, int64_t units, uint8_t* packed, int64_t gates = kGates,
                     bool short_tail = false);

// start[column] = -zero_point * sum over k of W: the accumulator's first value, so that the kernels can multiply raw
// uint8 codes. With zero_point 1 it can be multiplied by a zero point of each row instead.
// |start + any partial sum| <= 255 * 128 * k < 2^31 for k <= kMaxDepth.
void PackStartValues(const int8_t* weights, int64_t k, int64_t units, int32_t zero_point, int32_t* start,
                     int64_t gates = kGates, bool short_tail = false);
constexpr int64_t kMaxDepth = 65536;

// `given` times `units` values -> block order; gates that are not given are zero.
void PackColumns(const float* values, int64_t given, int64_t units, float* packed, int64_t gates = kGates,
                 bool short_tail = false);

// W [k, gates * units].
struct Matrix {
  const int8_t* weights;
  int64_t k;
  int64_t units;
  // Of [GroupCount(k, group_size), gates * units] groups, or null. Every weight is a number of at most six bits times
  // its group's, but in columns all of whose multipliers are 0. With `sets` the number is a value of the group's set,
  // which stands above the multiplier (codebooks.h).
  const uint8_t* multipliers;
  int64_t group_size;
  int64_t gates = kGates;
  bool sets = false;
  bool short_tail = false;  // of MayHaveShortTail(units, gates) only

  int64_t columns() const { return gates * units; }
};

struct PackedMatrix {
  PackedFormat format = PackedFormat::kS8Blocks;
  int64_t k = 0;
  int64_t k_padded = 0;
  int64_t columns = 0;  // in block order, those behind the last group of 16 with a gate's unit left out
  AlignedArray<uint8_t> weights;
  AlignedArray<int32_t> start;
  AlignedArray<uint8_t> multipliers;  // or records, as many for each block; empty without groups
  int64_t group_size = 0;
  // Columns of a matrix of few bits that need more are zero in it and stand in a matrix of their own, without start
  // values: its column j belongs to column wide_columns[j] (in block order) of this one.
  std::unique_ptr<PackedMatrix> wide;
  std::vector<int32_t> wide_columns;

  int64_t bytes() const { return weights.size() + (wide != nullptr ? wide->weights.size() : 0); }
};

// The bit widths that a matrix may get.
enum class Width {
  kEight,
  kFewest,  // as few bits as all weights have
  kMixed,   // or as most columns have, with the others apart
};

PackedMatrix PackMatrix(const PackedFormats& formats, Width width, const Matrix& matrix, int32_t zero_point);

}  // namespace rnnqc

#endif  // RNNQC_KERNELS_COMMON_PACKING_H_
