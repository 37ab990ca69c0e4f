#ifndef RNNQC_CELLS_DRIVER_GROUPS_H_
#define RNNQC_CELLS_DRIVER_GROUPS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cells/driver/cell_run.h"
#include "cells/driver/scratch.h"

namespace rnnqc {

// Runs all rows in groups that may run at the same time. make(first, stride) is a run of the rows first,
// first + stride, ...; it has ScratchBytes(), TakeScratch() and Run().
template <typename Make>
void RunGroups(int64_t count, const Make& make, Scratch* scratch, Parallel* parallel) {
  if (count == 1) {
    auto run = make(0, 1);
    scratch->Reset(1, run.ScratchBytes());
    run.TakeScratch(scratch->Share(0));
    return run.Run();
  }
  struct Groups {
    const Make& make;
    Scratch* scratch;
    int64_t count;
  };
  Groups groups{make, scratch, count};
  // A largest and a smallest one: fewer rows take more steps at a time, and may need more memory.
  scratch->Reset(count, std::max(make(0, count).ScratchBytes(), make(count - 1, count).ScratchBytes()));
  parallel->For(
      count,
      [](void* user, size_t index) {
        const Groups& all = *static_cast<const Groups*>(user);
        auto run = all.make(static_cast<int64_t>(index), all.count);
        run.TakeScratch(all.scratch->Share(static_cast<int64_t>(index)));
        run.Run();
      },
      &groups);
}

}  // namespace rnnqc

#endif  // RNNQC_CELLS_DRIVER_GROUPS_H_
