#ifndef RNNQC_CELLS_DRIVER_KEPT_TABLES_H_
#define RNNQC_CELLS_DRIVER_KEPT_TABLES_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/common/linear_tables.h"

namespace rnnqc {

// Tables that have a linear form, with their entries, which runs hardly use.
class KeptTables {
 public:
  // The tables that `extent` names, whose gates' are in the first `gate_size` entries of `gate_table`; null if they
  // have no linear form. The result has copies of the entries. As long as it lives, others get it for the same tables:
  // it is larger than most layers, and the form is found by a look at every entry.
  static std::shared_ptr<const KeptTables> Find(const TableExtent& extent, const float* gate_table, size_t gate_size);

  const float* gate() const { return gate_.data(); }
  const float* cell() const { return cell_.empty() ? nullptr : cell_.data(); }
  const LinearTables& linear() const { return linear_; }

 private:
  KeptTables(const TableExtent& extent, const float* gate_table, size_t gate_size);
  bool Holds(const TableExtent& extent, const float* gate_table, size_t gate_size) const;

  TableExtent extent_;  // of the copies
  std::vector<float> gate_;
  std::vector<float> cell_;
  LinearTables linear_{};
};

}  // namespace rnnqc

#endif  // RNNQC_CELLS_DRIVER_KEPT_TABLES_H_
