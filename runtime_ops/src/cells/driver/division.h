#ifndef RNNQC_CELLS_DRIVER_DIVISION_H_
#define RNNQC_CELLS_DRIVER_DIVISION_H_

#include <cstdint>

#include "cells/driver/groups.h"
#include "cells/driver/scratch.h"
#include "cells/driver/sequence_run.h"
#include "cells/driver/team.h"

namespace rnnqc {

// How the work of a call is divided; results do not depend on it.
struct Division {
  int64_t groups = 1;  // of rows, each run by one thread at a time
  int64_t parts = 1;   // of the columns of each step, at most
};

// `hidden_bytes` and `hidden_columns` are those of all recurrent matrices; `members` threads took part in the last
// call.
Division Divide(const CellConfig& config, const KernelTable& kernels, const PackedCell& packed, int64_t hidden_bytes,
                int64_t hidden_columns, const CellArgs& args, int64_t members);

// make(first, stride) is a SequenceRun of the rows first, first + stride, ...
template <typename Make>
void RunDivided(const Division& division, const Make& make, Scratch* scratch, Parallel* parallel) {
  if (division.groups > 1 || division.parts == 1) return RunGroups(division.groups, make, scratch, parallel);
  auto run = make(0, 1);
  scratch->Reset(1, run.ScratchBytes());
  run.TakeScratch(scratch->Share(0));
  struct Work {
    SequenceRun* run;
    int64_t parts;
    Team team;
  };
  Work work{&run, division.parts, Team(SequenceRun::Part, static_cast<SequenceRun*>(&run))};
  parallel->For(
      work.parts,
      [](void* user, size_t) {
        Work& shared = *static_cast<Work*>(user);
        if (!shared.team.Lead()) return shared.team.Help();
        shared.run->Run(&shared.team, shared.parts);
        shared.team.Finish();
      },
      &work);
  scratch->SetMembers(work.team.Members());
}

}  // namespace rnnqc

#endif  // RNNQC_CELLS_DRIVER_DIVISION_H_
