#ifndef RNNQC_CUSTOM_CUSTOM_LAYER_H_
#define RNNQC_CUSTOM_CUSTOM_LAYER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cells/driver/scratch.h"
#include "custom/program.h"
#include "custom/running_program.h"
#include "kernels/kernel_table.h"

namespace rnnqc {

// Runs a custom cell over sequences.
class CustomLayer {
 public:
  // `constants` are the data of the program's constants and matrices, in its order; they are copied.
  CustomLayer(const Program& program, const KernelTable& kernels, const std::vector<const void*>& constants);

  void Run(const CustomArgs& args, Scratch* scratch, OperatorCaller* caller) const;

 private:
  std::shared_ptr<const PackedMatrix> Packed(int32_t value, const std::vector<const void*>& constants) const;
  ProgramProduct MakeProduct(const Instruction& instruction, const std::vector<const void*>& constants) const;

  const Program& program_;  // which outlives it
  const KernelTable& kernels_;
  std::vector<AlignedArray<uint8_t>> once_;  // by value, those that no row of the batch changes
  std::vector<ProgramProduct> products_;     // by instruction; empty for others
  int64_t ahead_rows_ = 1;                   // rows that are computed together, ahead of the steps
};

}  // namespace rnnqc

#endif  // RNNQC_CUSTOM_CUSTOM_LAYER_H_
