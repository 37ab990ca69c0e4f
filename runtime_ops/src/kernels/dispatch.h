#ifndef RNNQC_KERNELS_DISPATCH_H_
#define RNNQC_KERNELS_DISPATCH_H_

#include <string>
#include <vector>

#include "kernels/kernel_table.h"

namespace rnnqc {

// Tables that are built into this library and run on this processor, least preferred first.
const std::vector<KernelTable>& AvailableTables();

// The available table called `isa`, or null.
const KernelTable* FindTable(const std::string& isa);

// The table every cell of this process uses: the most preferred one, or the one that the environment variable
// RNNQC_ISA names. Throws std::runtime_error if that one is not available.
const KernelTable& SelectedTable();

}  // namespace rnnqc

#endif  // RNNQC_KERNELS_DISPATCH_H_
