#ifndef RNNQC_CELLS_DRIVER_SEQUENCE_DRIVER_H_
#define RNNQC_CELLS_DRIVER_SEQUENCE_DRIVER_H_

#include <cstdint>

#include "cells/driver/cell_run.h"
#include "cells/driver/scratch.h"
#include "cells/driver/sequence_rows.h"

namespace rnnqc {

// Some rows of one call of an operator: the order of the steps, in chunks whose input's share is computed at once, and
// what all cells do at both ends. A subclass has an arithmetic, and a subclass of that the steps of a cell.
class SequenceDriver {
 public:
  SequenceDriver(const SequenceDriver&) = delete;
  SequenceDriver& operator=(const SequenceDriver&) = delete;

  int64_t ScratchBytes();

  // `memory` has ScratchBytes() bytes.
  void TakeScratch(uint8_t* memory);
  void TakeScratch(Scratch* scratch);

  void Run();

 protected:
  SequenceDriver(const CellConfig& config, const KernelTable& kernels, const CellArgs& args, int64_t first,
                 int64_t stride)
      : config_(config),
        kernels_(kernels),
        args_(args),
        sequences_(config.direction, args.time, args.batch, args.sequence_lens, first, stride),
        rows_(sequences_.count()),
        hidden_(config.hidden_size) {}
  ~SequenceDriver() = default;

  // Implemented by an arithmetic.
  virtual void VisitDriverScratch(ScratchPieces& pieces) = 0;
  // Hidden codes of all rows before their first step: those of zero, or of initial_h.
  virtual void InitializeCodes() = 0;
  // Quantizes the running chunk's input, and does other work before its steps.
  virtual void StartChunk() = 0;
  // The running step; the chunk's steps before it had `row` rows.
  virtual void StartStep(int64_t row) = 0;
  // Y of row r's last step.
  virtual const float* LastY(int64_t r) const = 0;

  // Implemented by a cell.
  virtual void VisitScratch(ScratchPieces& pieces) = 0;
  // Sets the states of all rows before their first step, and arguments that are the same in all steps.
  virtual void InitializeStates() = 0;
  // Runs the current step.
  virtual void RunStep() = 0;
  virtual void WriteFinalStates() {}

  bool has_lengths() const { return args_.sequence_lens != nullptr; }

  const CellConfig& config_;
  const KernelTable& kernels_;
  const CellArgs& args_;
  SequenceRows sequences_;
  const int64_t rows_;
  const int64_t hidden_;
  int64_t chunk_steps_ = 1;  // steps of a chunk, at most

  int64_t chunk_begin_ = 0;
  int64_t chunk_end_ = 0;
  int64_t step_ = 0;
  int64_t active_ = 0;  // rows of the step

 private:
  void VisitAllScratch(ScratchPieces& pieces);
  void ForgetSignsOfZeros() const;
  void WriteLastHidden() const;
};

}  // namespace rnnqc

#endif  // RNNQC_CELLS_DRIVER_SEQUENCE_DRIVER_H_
