#include "kernels/common/packing.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/common/codebooks.h"

namespace rnnqc {
namespace {

// The columns of a matrix [k, gates * units].
struct Columns {
  int64_t units;
  int64_t gates;
  bool short_tail;

  int64_t count() const { return gates * units; }
  int64_t packed_count() const { return ColumnCount(units, gates); }
  // Whether `unit` belongs to a short tail.
  bool IsShort(int64_t unit) const { return short_tail && unit / kBlockUnits == units / kBlockUnits; }
  // Position of a gate's unit in block order.
  int64_t Packed(int64_t gate, int64_t unit) const {
    const int64_t gate_columns = IsShort(unit) ? kShortUnits : kBlockUnits;
    return unit / kBlockUnits * gates * kBlockUnits + gate * gate_columns + unit % kBlockUnits;
  }
  // Positions up to the last group of 16 that has columns.
  int64_t used() const { return RoundUp(Packed(gates - 1, units - 1) + 1, kBlockUnits); }
  // visit(column, position in block order) for all columns, by gate.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (int64_t gate = 0; gate < gates; ++gate) {
      for (int64_t unit = 0; unit < units; ++unit) visit(gate * units + unit, Packed(gate, unit));
    }
  }
};

Columns ColumnsOf(const Matrix& matrix) { return {matrix.units, matrix.gates, matrix.short_tail}; }

void PackS16Columns(const int8_t* weights, int64_t k, const Columns& columns, int64_t k_padded, int16_t* packed) {
  for (int64_t i = 0; i < k; ++i) {
    const int8_t* row = weights + i * columns.count();
    columns.ForEach([&](int64_t from, int64_t to) { packed[to * k_padded + i] = row[from]; });
  }
}

// Weights [4 k from `first`, 16 columns in block order from `position`], zeros beyond the matrix.
void PackQuad(const int8_t* weights, int64_t k, const Columns& columns, int64_t first, int64_t position, int8_t* quad) {
  const int64_t group = position / kBlockUnits;
  const int64_t unit = group / columns.gates * kBlockUnits;
  const int64_t count = std::min(kBlockUnits, columns.units - unit);
  if (columns.IsShort(unit) && group % columns.gates > 0) return;
  const int64_t gates = columns.IsShort(unit) ? columns.gates : 1;
  for (int64_t i = 0; i < std::min<int64_t>(4, k - first); ++i) {
    const int8_t* row = weights + (first + i) * columns.count() + group % columns.gates * columns.units + unit;
    for (int64_t gate = 0; gate < gates; ++gate) {
      int8_t* to = quad + 4 * gate * kShortUnits + i;
      for (int64_t u = 0; u < count; ++u) to[4 * u] = row[gate * columns.units + u];
    }
  }
}

// Blocks of kS8Blocks, each after `gap` bytes that are left alone. The packed memory holds zeros.
void PackS8Blocks(const int8_t* weights, int64_t k, const Columns& columns, int64_t k_padded, int64_t gap,
                  int8_t* packed) {
  for (int64_t block = 0; block < columns.packed_count(); block += kBlockColumns) {
    packed += gap;
    for (int64_t first = 0; first < k_padded; first += 4) {
      for (int64_t group = 0; group < kBlockColumns; group += kBlockUnits) {
        PackQuad(weights, k, columns, first, block + group, packed);
        packed += 4 * kBlockUnits;
      }
    }
  }
}

// The packed memory holds zeros.
void PackS8Octets(const int8_t* weights, int64_t k, const Columns& columns, int64_t k_padded, int8_t* packed) {
  for (int64_t block = 0; block < columns.packed_count(); block += kBlockColumns) {
    for (int64_t first = 0; first < k_padded; first += 8) {
      for (int64_t group = 0; group < kBlockColumns; group += kBlockUnits) {
        for (int64_t half = 0; half < 8; half += 4) {
          int8_t quad[4 * kBlockUnits] = {};
          PackQuad(weights, k, columns, first + half, block + group, quad);
          for (int64_t u = 0; u < kBlockUnits; ++u) std::memcpy(packed + 8 * u + half, quad + 4 * u, 4);
        }
        packed += 8 * kBlockUnits;
      }
    }
  }
}

// A byte of kS4Blocks holds the weights of one group for k and k + 4, one of kS4Pairs those of two groups for one k.
void PackS4(PackedFormat format, const int8_t* weights, int64_t k, const Columns& columns, int64_t k_padded,
            uint8_t* packed) {
  const bool pairs = format == PackedFormat::kS4Pairs;
  const int64_t next_k = pairs ? 0 : 4;
  const int64_t next_group = pairs ? kBlockUnits : 0;
  const int zero = pairs ? 8 : 0;  // of the lower half
  for (int64_t block = 0; block < columns.packed_count(); block += kBlockColumns) {
    for (int64_t first = 0; first < k_padded; first += 4 + next_k) {
      for (int64_t group = 0; group < kBlockColumns; group += kBlockUnits + next_group) {
        int8_t lower[4 * kBlockUnits] = {};
        int8_t upper[4 * kBlockUnits] = {};
        PackQuad(weights, k, columns, first, block + group, lower);
        PackQuad(weights, k, columns, first + next_k, block + group + next_group, upper);
        for (int64_t i = 0; i < 4 * kBlockUnits; ++i) {
          packed[i] = static_cast<uint8_t>(((lower[i] + zero) & 15) | (upper[i] & 15) << 4);
        }
        packed += 4 * kBlockUnits;
      }
    }
  }
}

// The order of columns makes neighbours of those whose sums a kernel adds up together.
int64_t PlaceInPart(int64_t column) { return column % 4 * 2 + column / 4; }

// The packed memory holds zeros.
void PackS4Sets(const int8_t* numbers, int64_t k, const Columns& columns, uint8_t* packed) {
  const int64_t groups = GroupCount(k, kGroupDepth);
  columns.ForEach([&](int64_t from, int64_t to) {
    uint8_t* part = packed + to / kSetColumns * groups * kSetColumns * (kGroupDepth / 2);
    for (int64_t i = 0; i < k; ++i) {
      const int64_t in_group = i % kGroupDepth;
      const int64_t place = i / kGroupDepth * kSetColumns + PlaceInPart(to % kSetColumns);
      uint8_t* byte = part + place * (kGroupDepth / 2) + in_group % (kGroupDepth / 2);
      const int number = numbers[i * columns.count() + from] & 15;
      *byte = static_cast<uint8_t>(*byte | (in_group < kGroupDepth / 2 ? number : number << 4));
    }
  });
}

// Records of kS4Sets for every group of kGroupDepth k.
AlignedArray<uint8_t> SetRecords(const Matrix& matrix) {
  const Columns columns = ColumnsOf(matrix);
  const int64_t groups = GroupCount(matrix.k, kGroupDepth);
  AlignedArray<uint8_t> records(columns.packed_count() / kSetColumns * groups * kSetRecord);
  std::memset(records.data(), 0, static_cast<size_t>(records.size()));
  for (int64_t group = 0; group < groups; ++group) {
    const uint8_t* entries = matrix.multipliers + group * kGroupDepth / matrix.group_size * columns.count();
    columns.ForEach([&](int64_t from, int64_t to) {
      uint8_t* record = records.data() + (to / kSetColumns * groups + group) * kSetRecord;
      const int64_t column = to % kSetColumns;
      const int set = entries[from] >> kSetShift;
      uint8_t* pair = record + kSetColumns + column % 4;
      record[column] = static_cast<uint8_t>(entries[from] & kMultiplierMask);
      *pair = static_cast<uint8_t>(*pair + (column < 4 ? kSets * set : set));
    });
  }
  return records;
}

// kS4Places.
void PackPlaces(const Matrix& matrix, int64_t k_padded, uint8_t* packed) {
  const Columns columns = ColumnsOf(matrix);
  std::vector<uint8_t> places(static_cast<size_t>(columns.packed_count()));
  for (int64_t i = 0; i < k_padded; ++i) {
    // Beyond the matrix the value 0; the groups of columns that are none have set 0.
    std::fill(places.begin(), places.end(), static_cast<uint8_t>(PlaceInTable(0, 0)));
    const int64_t group = std::min(i, matrix.k - 1) / matrix.group_size;
    columns.ForEach([&](int64_t from, int64_t to) {
      const uint8_t entry = matrix.multipliers[group * columns.count() + from];
      const int multiplier = entry & kMultiplierMask;
      const int value = i < matrix.k && multiplier > 0 ? matrix.weights[i * columns.count() + from] / multiplier : 0;
      places[static_cast<size_t>(to)] = static_cast<uint8_t>(PlaceInTable(entry >> kSetShift, value));
    });
    for (int64_t column = 0; column < columns.packed_count(); ++column) {
      const int64_t line = (column / kBlockColumns * (k_padded / 4) + i / 4) * 2 + column % kBlockColumns / 32;
      uint8_t* byte = packed + line * 4 * kBlockUnits + column % kBlockUnits * 4 + i % 4;
      const int place = places[static_cast<size_t>(column)];
      *byte = static_cast<uint8_t>(column % 32 < kBlockUnits ? place : *byte | place << 4);
    }
  }
}

// For the values of each set, -16 .. 15, their places, counted from that of 0.
struct PlacesInSets {
  int8_t places[kSets][2 * kSetSize] = {};

  PlacesInSets() {
    for (int set = 0; set < kSets; ++set) {
      for (int i = 0; i < kSetSize; ++i) {
        places[set][kSetValues[set][i] + kSetSize] = static_cast<int8_t>(i - ZeroOf(set));
      }
    }
  }
  int8_t Of(int weight, uint8_t entry) const {
    return places[entry >> kSetShift][weight / (entry & kMultiplierMask) + kSetSize];
  }
};

// Three lines of four k: the weights of three groups with parts of the fourth group's.
void PackS6Blocks(const int8_t* weights, int64_t k, const Columns& columns, int64_t k_padded, uint8_t* packed) {
  constexpr int64_t kLines = kGates - 1;
  for (int64_t block = 0; block < columns.packed_count(); block += kBlockColumns) {
    for (int64_t first = 0; first < k_padded; first += 4) {
      int8_t last[4 * kBlockUnits] = {};
      PackQuad(weights, k, columns, first, block + kLines * kBlockUnits, last);
      for (int64_t line = 0; line < kLines; ++line) {
        int8_t own[4 * kBlockUnits] = {};
        PackQuad(weights, k, columns, first, block + line * kBlockUnits, own);
        for (int64_t i = 0; i < 4 * kBlockUnits; ++i) {
          packed[i] = static_cast<uint8_t>((own[i] & 63) << 2 | ((last[i] + 32) >> 2 * line & 3));
        }
        packed += 4 * kBlockUnits;
      }
    }
  }
}

// The bits that each column of [k, columns] needs: 4, 6 or 8.
std::vector<int64_t> ColumnBits(const int8_t* row, int64_t k, size_t columns) {
  // Upper bits of weight + 8 and + 32, which are zero for weights of 4 and of 6 bits.
  std::vector<uint8_t> beyond4(columns, 0);
  std::vector<uint8_t> beyond6(columns, 0);
  for (int64_t i = 0; i < k; ++i) {
    for (size_t j = 0; j < columns; ++j) {
      beyond4[j] = static_cast<uint8_t>(beyond4[j] | ((row[j] + 8) & 0xf0));
      beyond6[j] = static_cast<uint8_t>(beyond6[j] | ((row[j] + 32) & 0xc0));
    }
    row += columns;
  }
  std::vector<int64_t> bits(columns);
  for (size_t j = 0; j < columns; ++j) bits[j] = beyond4[j] == 0 ? 4 : beyond6[j] == 0 ? 6 : 8;
  return bits;
}

// In bits of one k. Blocks are whole, and so is what is read of them.
int64_t SizeOf(PackedFormat format, int64_t columns) { return RoundUp(columns, kBlockColumns) * BitsOf(format); }

PackedMatrix PackAs(PackedFormat format, const Matrix& matrix, const int8_t* weights, int32_t zero_point) {
  PackedMatrix packed;
  packed.format = format;
  packed.k = matrix.k;
  packed.k_padded = PaddedDepth(format, matrix.k);
  packed.weights = AlignedArray<uint8_t>(PackedBytes(format, matrix.k, matrix.units, matrix.gates));
  packed.start = AlignedArray<int32_t>(ColumnCount(matrix.units, matrix.gates));
  packed.columns = matrix.columns() == 0 ? 0 : ColumnsOf(matrix).used();
  PackWeights(format, weights, matrix.k, matrix.units, packed.weights.data(), matrix.gates, matrix.short_tail);
  PackStartValues(matrix.weights, matrix.k, matrix.units, zero_point, packed.start.data(), matrix.gates,
                  matrix.short_tail);
  return packed;
}

// The columns of more than `narrow` bits in a matrix of their own, in block order. `numbers` are the weights of the
// others, divided by the multipliers of their groups.
PackedMatrix PackMixed(const PackedFormats& formats, PackedFormat narrow, int64_t narrow_bits, int64_t wide_bits,
                       const Matrix& matrix, std::vector<int8_t> numbers, const std::vector<int64_t>& bits,
                       int32_t zero_point) {
  const int64_t columns = matrix.columns();
  std::vector<std::pair<int32_t, int64_t>> places;  // in block order and in the matrix
  ColumnsOf(matrix).ForEach([&](int64_t from, int64_t to) {
    if (bits[static_cast<size_t>(from)] > narrow_bits) places.emplace_back(static_cast<int32_t>(to), from);
  });
  std::sort(places.begin(), places.end());
  const int64_t count = static_cast<int64_t>(places.size());
  const int64_t blocks = (count + kBlockColumns - 1) / kBlockColumns;
  Matrix apart{nullptr, matrix.k, blocks * kBlockUnits, nullptr, 0, kGates};
  std::vector<int8_t> columns_apart(static_cast<size_t>(matrix.k * blocks * kBlockColumns), 0);
  for (int64_t j = 0; j < count; ++j) {
    // The column of the matrix that PackWeights puts at position j of the block order.
    const int64_t unit = j / kBlockColumns * kBlockUnits + j % kBlockUnits;
    const int64_t gate = j % kBlockColumns / kBlockUnits;
    for (int64_t i = 0; i < matrix.k; ++i) {
      const size_t from = static_cast<size_t>(i * columns + places[static_cast<size_t>(j)].second);
      columns_apart[static_cast<size_t>(i * apart.columns() + gate * apart.units + unit)] = matrix.weights[from];
      numbers[from] = 0;
    }
  }
  apart.weights = columns_apart.data();
  PackedMatrix packed = PackAs(narrow, matrix, numbers.data(), zero_point);
  packed.wide = std::make_unique<PackedMatrix>(PackAs(formats.Of(wide_bits), apart, apart.weights, 0));
  for (const auto& place : places) packed.wide_columns.push_back(place.first);
  return packed;
}

// Groups: the weights divided by their multipliers, where the instruction set has a format for such numbers. Columns
// with multipliers of 0 are no numbers and stand apart, where that is wanted and takes fewer bytes.
PackedMatrix PackGroups(const PackedFormats& formats, Width width, const Matrix& matrix, int32_t zero_point) {
  const int64_t columns = matrix.columns();
  std::vector<int8_t> numbers(static_cast<size_t>(matrix.k * columns));
  const PlacesInSets in_sets;
  for (int64_t i = 0; i < matrix.k; ++i) {
    const uint8_t* multipliers = matrix.multipliers + i / matrix.group_size * columns;
    for (int64_t j = 0; j < columns; ++j) {
      const int8_t weight = matrix.weights[i * columns + j];
      int8_t* number = &numbers[static_cast<size_t>(i * columns + j)];
      if (multipliers[j] == 0) {
        *number = 0;
      } else if (matrix.sets) {
        *number = in_sets.Of(weight, multipliers[j]);
      } else {
        *number = static_cast<int8_t>(weight / multipliers[j]);
      }
    }
  }
  std::vector<int64_t> bits = ColumnBits(numbers.data(), matrix.k, static_cast<size_t>(columns));
  if (matrix.sets) std::fill(bits.begin(), bits.end(), 4);
  const int64_t most = *std::max_element(bits.begin(), bits.end());
  const PackedFormat format = matrix.sets ? formats.sets : formats.Of(most);
  const int64_t apart = std::count(matrix.multipliers, matrix.multipliers + columns, uint8_t{0});
  const int64_t all = ColumnCount(matrix.units, matrix.gates);
  const bool fewer_bytes = SizeOf(format, all) + SizeOf(formats.s8, apart) < SizeOf(formats.s8, all);
  const bool may_stand_apart = width == Width::kMixed && matrix.k * columns >= formats.least_apart && fewer_bytes;
  if (format == formats.s8 || (apart > 0 && !may_stand_apart)) {
    return PackAs(formats.s8, matrix, matrix.weights, zero_point);
  }
  for (int64_t j = 0; j < columns; ++j) {
    if (matrix.multipliers[j] == 0) bits[static_cast<size_t>(j)] = 8;
  }
  PackedMatrix packed = apart > 0 ? PackMixed(formats, format, most, 8, matrix, std::move(numbers), bits, zero_point)
                                  : PackAs(format, matrix, numbers.data(), zero_point);
  if (format == PackedFormat::kS4Sets) {
    packed.multipliers = SetRecords(matrix);
    return packed;
  }
  if (format == PackedFormat::kS4Places) PackPlaces(matrix, packed.k_padded, packed.weights.data());
  const int64_t groups = GroupCount(matrix.k, matrix.group_size);
  packed.group_size = matrix.group_size;
  packed.multipliers = AlignedArray<uint8_t>(ColumnCount(matrix.units, matrix.gates) * groups);
  PackMultipliers(matrix.multipliers, groups, matrix.units, packed.multipliers.data(), matrix.gates, matrix.short_tail);
  return packed;
}

// In front of every block.
void PackColumnSums(const int8_t* weights, int64_t k, const Columns& columns, int64_t k_padded, uint8_t* packed) {
  AlignedArray<int32_t> sums(columns.packed_count());
  PackStartValues(weights, k, columns.units, -128, sums.data(), columns.gates, columns.short_tail);
  for (int64_t block = 0; block * kBlockColumns < columns.packed_count(); ++block) {
    std::memcpy(packed + block * (kBlockColumns * k_padded + kColumnSumBytes), sums.data() + block * kBlockColumns,
                static_cast<size_t>(kColumnSumBytes));
  }
}

}  // namespace

int64_t PaddedDepth(PackedFormat format, int64_t k) {
  switch (format) {
    case PackedFormat::kS16Columns:
    case PackedFormat::kS4Sets:
      return RoundUp(k, 16);
    case PackedFormat::kS4Blocks:
    case PackedFormat::kS4Pairs:
    case PackedFormat::kS4Places:
    case PackedFormat::kS6Blocks:
    case PackedFormat::kS8Octets:
      return RoundUp(k, 8);
    case PackedFormat::kS8Blocks:
    case PackedFormat::kS8BlocksWithSums:
    case PackedFormat::kU8Blocks:
      break;
  }
  return RoundUp(k, 4);
}

int64_t PackedBytes(PackedFormat format, int64_t k, int64_t units, int64_t gates) {
  const int64_t sums = format == PackedFormat::kS8BlocksWithSums ? kColumnSumBytes : 0;
  const int64_t depth = format == PackedFormat::kS4Sets ? RoundUp(k, kGroupDepth) : PaddedDepth(format, k);
  return ColumnBlockCount(units, gates) * (kBlockColumns * depth * BitsOf(format) / 8 + sums);
}

void PackWeights(PackedFormat format, const int8_t* weights, int64_t k, int64_t units, void* packed, int64_t gates,
                 bool short_tail) {
  const int64_t size = PackedBytes(format, k, units, gates);
  std::memset(packed, 0, static_cast<size_t>(size));
  const int64_t k_padded = PaddedDepth(format, k);
  const Columns columns{units, gates, short_tail};
  switch (format) {
    case PackedFormat::kS16Columns:
      PackS16Columns(weights, k, columns, k_padded, static_cast<int16_t*>(packed));
      break;
    case PackedFormat::kS8Blocks:
      PackS8Blocks(weights, k, columns, k_padded, 0, static_cast<int8_t*>(packed));
      break;
    case PackedFormat::kS8BlocksWithSums:
      PackS8Blocks(weights, k, columns, k_padded, kColumnSumBytes, static_cast<int8_t*>(packed));
      PackColumnSums(weights, k, columns, k_padded, static_cast<uint8_t*>(packed));
      break;
    case PackedFormat::kS8Octets:
      PackS8Octets(weights, k, columns, k_padded, static_cast<int8_t*>(packed));
      break;
    case PackedFormat::kU8Blocks: {
      uint8_t* bytes = static_cast<uint8_t*>(packed);
      PackS8Blocks(weights, k, columns, k_padded, 0, static_cast<int8_t*>(packed));
      for (int64_t i = 0; i < size; ++i) bytes[i] ^= 0x80;
      break;
    }
    case PackedFormat::kS4Blocks:
    case PackedFormat::kS4Pairs:
      PackS4(format, weights, k, columns, k_padded, static_cast<uint8_t*>(packed));
      break;
    case PackedFormat::kS4Sets:
      PackS4Sets(weights, k, columns, static_cast<uint8_t*>(packed));
      break;
    case PackedFormat::kS4Places:
      break;  // PackPlaces writes them, which has the groups
    case PackedFormat::kS6Blocks:
      PackS6Blocks(weights, k, columns, k_padded, static_cast<uint8_t*>(packed));
      break;
  }
}

void PackStartValues(const int8_t* weights, int64_t k, int64_t units, int32_t zero_point, int32_t* start, int64_t gates,
                     bool short_tail) {
  const Columns columns{units, gates, short_tail};
  const size_t count = static_cast<size_t>(columns.count());
  std::vector<int32_t> sums(count, 0);
  for (int64_t i = 0; i < k; ++i) {
    for (size_t j = 0; j < count; ++j) sums[j] += weights[j];
    weights += count;
  }
  std::fill(start, start + columns.packed_count(), 0);
  columns.ForEach([&](int64_t from, int64_t to) { start[to] = -zero_point * sums[static_cast<size_t>(from)]; });
}

void PackColumns(const float* values, int64_t given, int64_t units, float* packed, int64_t gates, bool short_tail) {
  const Columns columns{units, gates, short_tail};
  std::fill(packed, packed + columns.packed_count(), 0.0f);
  for (int64_t gate = 0; gate < given; ++gate) {
    for (int64_t unit = 0; unit < units; ++unit) packed[columns.Packed(gate, unit)] = values[gate * units + unit];
  }
}

void PackMultipliers(const uint8_t* multipliers, int64_t groups, int64_t units, uint8_t* packed, int64_t gates,
                     bool short_tail) {
  const Columns columns{units, gates, short_tail};
  std::memset(packed, 1, static_cast<size_t>(columns.packed_count() * groups));
  for (int64_t group = 0; group < groups; ++group) {
    columns.ForEach([&](int64_t from, int64_t to) {
      packed[(to / kBlockColumns * groups + group) * kBlockColumns + to % kBlockColumns] =
          multipliers[group * columns.count() + from];
    });
  }
}

PackedMatrix PackMatrix(const PackedFormats& formats, Width width, const Matrix& matrix, int32_t zero_point) {
  if (width == Width::kEight) return PackAs(formats.s8, matrix, matrix.weights, zero_point);
  const int64_t columns = matrix.columns();
  const bool in_groups = !matrix.sets || (formats.sets != formats.s8 && matrix.k * columns >= formats.least_sets);
  if (matrix.multipliers != nullptr && in_groups) return PackGroups(formats, width, matrix, zero_point);
  const std::vector<int64_t> bits = ColumnBits(matrix.weights, matrix.k, static_cast<size_t>(columns));
  const int64_t most = *std::max_element(bits.begin(), bits.end());
  const int64_t all = ColumnCount(matrix.units, matrix.gates);
  int64_t least = SizeOf(formats.Of(most), all);
  int64_t narrow = most;
  for (const int64_t few : {int64_t{4}, int64_t{6}}) {
    if (width != Width::kMixed || matrix.k * columns < formats.least_apart || few >= most) continue;
    const int64_t apart = std::count_if(bits.begin(), bits.end(), [few](int64_t b) { return b > few; });
    const int64_t size = SizeOf(formats.Of(few), all) + SizeOf(formats.Of(most), apart);
    if (size >= least) continue;
    least = size;
    narrow = few;
  }
  if (narrow < most) {
    std::vector<int8_t> numbers(matrix.weights, matrix.weights + matrix.k * columns);
    return PackMixed(formats, formats.Of(narrow), narrow, most, matrix, std::move(numbers), bits, zero_point);
  }
  return PackAs(formats.Of(most), matrix, matrix.weights, zero_point);
}

}  // namespace rnnqc
