#ifndef RNNQC_CELLS_DRIVER_LAYER_H_
#define RNNQC_CELLS_DRIVER_LAYER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "cells/driver/cell_run.h"
#include "cells/driver/scratch.h"
#include "cells/driver/sequence_run.h"
#include "threads/team.h"

namespace rnnqc {

// One direction of a layer with its weights packed, whatever its cell and its arithmetic.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual int64_t input_size() const = 0;
  virtual void Run(const CellArgs& args, Scratch* scratch, Parallel* parallel) const = 0;
};

// Runs all rows in groups that may run at the same time. make(first, stride) is a run of the rows first,
// first + stride, ...
template <typename Make>
void RunGroups(int64_t count, const Make& make, Scratch* scratch, Parallel* parallel) {
  if (count == 1) {
    auto run = make(0, 1);
    run.TakeScratch(scratch);
    return run.Run();
  }
  struct Groups {
    const Make& make;
    Scratch* scratch;
    int64_t count;
  };
  Groups groups{make, scratch, count};
  // The memory of a largest and of a smallest group: with fewer rows more steps run at a time, which may need more.
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

// Runs all rows in steps of at most `parts` parts.
inline void RunParts(int64_t parts, SequenceRun* run, Scratch* scratch, Parallel* parallel) {
  run->TakeScratch(scratch);
  struct Work {
    SequenceRun* run;
    int64_t parts;
    Team team;
  };
  Work work{run, parts, Team(SequenceRun::Part, run)};
  parallel->For(
      parts,
      [](void* user, size_t) {
        Work& shared = *static_cast<Work*>(user);
        if (!shared.team.Lead()) return shared.team.Help();
        shared.run->RunWith(&shared.team, shared.parts);
        shared.team.Finish();
      },
      &work);
  scratch->SetMembers(work.team.Members());
}

// A layer whose calls are runs `CellRun(config, kernels, packed, args, first, stride)`.
template <typename CellRun, typename Config, typename Packed>
class LayerOf final : public Layer {
 public:
  LayerOf(const Config& config, const KernelTable& kernels, Packed packed)
      : config_(config), kernels_(kernels), packed_(std::move(packed)) {}

  int64_t input_size() const override { return packed_.input_size(); }

  void Run(const CellArgs& args, Scratch* scratch, Parallel* parallel) const override {
    const Division division = packed_.Divide(config_, kernels_, args, scratch->members());
    const auto make = [&](int64_t first, int64_t stride) {
      return CellRun(config_, kernels_, packed_, args, first, stride);
    };
    if constexpr (std::is_base_of_v<SequenceRun, CellRun>) {
      if (division.groups == 1 && division.parts > 1) {
        auto run = make(0, 1);
        return RunParts(division.parts, &run, scratch, parallel);
      }
    }
    RunGroups(division.groups, make, scratch, parallel);
  }

 private:
  const Config& config_;  // which outlives it
  const KernelTable& kernels_;
  const Packed packed_;
};

template <typename CellRun, typename Config, typename Packed>
std::unique_ptr<Layer> MakeLayer(const Config& config, const KernelTable& kernels, Packed packed) {
  return std::make_unique<LayerOf<CellRun, Config, Packed>>(config, kernels, std::move(packed));
}

}  // namespace rnnqc

#endif  // RNNQC_CELLS_DRIVER_LAYER_H_
