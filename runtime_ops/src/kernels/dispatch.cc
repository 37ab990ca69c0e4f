#include "kernels/dispatch.h"

#include <cstdlib>
#include <stdexcept>

#include "kernels/cpu_features.h"

namespace rnnqc {
namespace {

std::vector<KernelTable> BuiltTables() {
  std::vector<KernelTable> tables;
  KernelTable current{};
#define RNNQC_ISA(name, packed_format, packed_s4, packed_sets, rows, sets_from, tails) \
  current.isa = #name;                                                                 \
  current.format = PackedFormat::packed_format;                                        \
  current.format_s4 = PackedFormat::packed_s4;                                         \
  current.format_sets = PackedFormat::packed_sets;                                     \
  current.rows_at_once = rows;                                                         \
  current.least_sets = int64_t{sets_from} << 20;                                       \
  current.short_tails = tails;                                                         \
  current.project = nullptr;                                                           \
  current.recurrent = nullptr;                                                         \
  current.project_s4 = nullptr;                                                        \
  current.recurrent_s4 = nullptr;                                                      \
  current.project_sets = nullptr;                                                      \
  current.recurrent_sets = nullptr;                                                    \
  current.project_s6 = nullptr;                                                        \
  current.recurrent_s6 = nullptr;                                                      \
  tables.push_back(current);
#define RNNQC_KERNEL(name, entry, type, symbol) \
  current.entry = symbol;                       \
  tables.back() = current;
#include "kernels/kernels.inc"
#undef RNNQC_KERNEL
#undef RNNQC_ISA
  return tables;
}

std::string Join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

const KernelTable& Select() {
  const char* wanted = std::getenv("RNNQC_ISA");
  if (wanted == nullptr || *wanted == '\0') return AvailableTables().back();
  const KernelTable* table = FindTable(wanted);
  if (table != nullptr) return *table;
  std::vector<std::string> available;
  for (const KernelTable& each : AvailableTables()) available.emplace_back(each.isa);
  throw std::runtime_error("the environment variable RNNQC_ISA is \"" + std::string(wanted) +
                           "\", which is not available; available here: " + Join(available) +
                           "; instruction sets of this processor: " + Join(CpuFeatureNames()) +
                           ". Unset it or name an available one.");
}

}  // namespace

const std::vector<KernelTable>& AvailableTables() {
  static const std::vector<KernelTable> tables = [] {
    std::vector<KernelTable> available;
    for (const KernelTable& table : BuiltTables()) {
      if (CpuSupports(table.isa)) available.push_back(table);
    }
    return available;
  }();
  return tables;
}

const KernelTable* FindTable(const std::string& isa) {
  for (const KernelTable& table : AvailableTables()) {
    if (isa == table.isa) return &table;
  }
  return nullptr;
}

const KernelTable& SelectedTable() {
  static const KernelTable& table = Select();
  return table;
}

}  // namespace rnnqc
