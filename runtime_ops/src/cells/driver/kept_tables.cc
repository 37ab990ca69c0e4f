#include "cells/driver/kept_tables.h"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace rnnqc {
namespace {

bool SameEntries(const std::vector<float>& held, const float* entries, size_t size) {
  return held.size() == size && (size == 0 || std::memcmp(held.data(), entries, size * sizeof(float)) == 0);
}

}  // namespace

KeptTables::KeptTables(const TableExtent& extent, const float* gate_table, size_t gate_size)
    : extent_(extent), gate_(gate_table, gate_table + gate_size) {
  for (int64_t g = 0; g < extent.gates; ++g) {
    if (extent.gate_table[g] != nullptr) extent_.gate_table[g] = gate_.data() + (extent.gate_table[g] - gate_table);
  }
  if (extent.cell_table == nullptr) return;
  cell_.assign(extent.cell_table, extent.cell_table + extent.cell_table_size);
  extent_.cell_table = cell_.data();
}

bool KeptTables::Holds(const TableExtent& extent, const float* gate_table, size_t gate_size) const {
  if (extent.gates != extent_.gates) return false;
  for (int64_t g = 0; g < extent.gates; ++g) {
    const bool used = extent.gate_table[g] != nullptr;
    if (used != (extent_.gate_table[g] != nullptr)) return false;
    if (!used) continue;
    if (extent.gate_table[g] - gate_table != extent_.gate_table[g] - gate_.data()) return false;
    if (extent.gate_max[g] != extent_.gate_max[g]) return false;
  }
  const size_t cell_size = extent.cell_table == nullptr ? 0 : static_cast<size_t>(extent.cell_table_size);
  return SameEntries(gate_, gate_table, gate_size) && SameEntries(cell_, extent.cell_table, cell_size);
}

std::shared_ptr<const KeptTables> KeptTables::Find(const TableExtent& extent, const float* gate_table,
                                                   size_t gate_size) {
  static auto* const mutex = new std::mutex;
  static auto* const all = new std::vector<std::weak_ptr<const KeptTables>>;
  const std::lock_guard<std::mutex> lock(*mutex);
  all->erase(std::remove_if(all->begin(), all->end(), [](const auto& tables) { return tables.expired(); }), all->end());
  for (const auto& held : *all) {
    const std::shared_ptr<const KeptTables> tables = held.lock();
    if (tables != nullptr && tables->Holds(extent, gate_table, gate_size)) return tables;
  }
  LinearTables linear{};
  if (!FindLinearTables(extent, &linear)) return nullptr;
  const std::shared_ptr<KeptTables> made(new KeptTables(extent, gate_table, gate_size));
  made->linear_ = linear;
  all->push_back(made);
  return made;
}

}  // namespace rnnqc
