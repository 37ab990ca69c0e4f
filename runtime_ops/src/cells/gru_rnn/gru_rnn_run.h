#ifndef RNNQC_CELLS_GRU_RNN_GRU_RNN_RUN_H_
#define RNNQC_CELLS_GRU_RNN_GRU_RNN_RUN_H_

#include "cells/driver/sequence_run.h"

namespace rnnqc {

// Common to the cells without a cell state.
class HiddenRun : public SequenceRun {
 protected:
  HiddenRun(const CellConfig& config, const KernelTable& kernels, const PackedCell& packed, const CellArgs& args,
            int64_t first, int64_t stride);
  ~HiddenRun() = default;

  // The quantization of a kernel's values.
  struct Target {
    float scale;            // of static codes
    Reciprocal reciprocal;  // of it
    int64_t zero_point;
    uint8_t* codes;
    float* row_scale;     // of dynamic rows
    const float* values;  // rows of units_padded_; null for those of y
  };
  Target HiddenCodes() const {
    return {config_.h_scale, packed_.h_reciprocal, config_.h_zero_point, CodesAfter(step_), h_scale_, nullptr};
  }

  void VisitScratch(ScratchPieces& pieces) override;
  // Sets the arguments that are the same in all steps; call it before the first step.
  void PrepareSteps();
  // A product, the kernel that follows it, and the codes of what it gives but those of dynamic rows. The product is
  // that of whole states where `loses_` is set and the codes of what they lose were made.
  void MultiplyAndStep(HiddenCellFn* kernel, const Product& product, const Target& target, const Blocks& units) const;
  // The codes of dynamic rows, which take all units.
  void QuantizeDynamicRows(const Target& target) const {
    if (is_dynamic()) QuantizeRows(target);
  }

  bool is_dynamic() const { return config_.h_mode == CodeMode::kDynamicRow; }
  // Whether the kernels write the codes themselves.
  bool kernels_quantize() const { return !is_dynamic() && h_planes_ == 1; }

  HiddenCellArgs step_args_{};
  float* reset_ = nullptr;  // r * h of a GRU whose kernels do not write its codes
  bool loses_ = false;

 private:
  // Products of 8-bit codes in units of pre-activations.
  void ScaleSums(const Product& product, const Blocks& units) const;
  void QuantizeRows(const Target& target) const;
  const float* ValuesOf(const Target& target, int64_t r) const {
    return target.values == nullptr ? y_rows_[r] : target.values + r * units_padded_;
  }

  const bool has_options_;
  HiddenCellOptions options_{};  // those of all steps
  float* joined_ = nullptr;      // products of 16-bit codes, or of whole states
  float* no_bias_ = nullptr;
};

// The gates' tables of such a configuration.
TableExtent GateTablesOf(const CellConfig& config, const float* gate_table);

}  // namespace rnnqc

#endif  // RNNQC_CELLS_GRU_RNN_GRU_RNN_RUN_H_
