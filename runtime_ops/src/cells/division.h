#ifndef RNNQC_CELLS_DIVISION_H_
#define RNNQC_CELLS_DIVISION_H_

#include <algorithm>
#include <cstdint>

#include "cells/scratch.h"
#include "cells/sequence_run.h"
#include "cells/team.h"

namespace rnnqc {

// How the work of a call is divided; results do not depend on it.
struct Division {
  int64_t groups = 1;  // of rows, each run by one thread at a time
  int64_t parts = 1;   // of the columns of each step, at most
};

// `hidden_bytes` and `hidden_columns` are those of all recurrent matrices; `members` threads took part in the last
// call.
Division Divide(const CellConfig& config, const PackedCell& packed, int64_t hidden_bytes, int64_t hidden_columns,
                const CellArgs& args, int64_t members);

// make(first, stride) is a SequenceRun of the rows first, first + stride, ...
template <typename Make>
void RunDivided(const Division& division, const Make& make, Scratch* scratch, Parallel* parallel) {
  if (division.groups > 1) {
    struct Groups {
      const Make& make;
      Scratch* scratch;
      int64_t count;
    };
    Groups groups{make, scratch, division.groups};
    // A largest and a smallest one: fewer rows take more steps at a time, and may need more memory.
    const int64_t largest = make(0, groups.count).ScratchBytes();
    const int64_t smallest = make(groups.count - 1, groups.count).ScratchBytes();
    scratch->Reset(groups.count, std::max(largest, smallest));
    parallel->For(
        groups.count,
        [](void* user, size_t index) {
          const Groups& all = *static_cast<const Groups*>(user);
          auto run = all.make(static_cast<int64_t>(index), all.count);
          run.TakeScratch(all.scratch->Share(static_cast<int64_t>(index)));
          run.Run();
        },
        &groups);
    return;
  }
  auto run = make(0, 1);
  scratch->Reset(1, run.ScratchBytes());
  run.TakeScratch(scratch->Share(0));
  if (division.parts == 1) {
    run.Run();
    return;
  }
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

#endif  // RNNQC_CELLS_DIVISION_H_
