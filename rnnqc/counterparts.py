"""What the words of other tools are called here, for the messages to people who come from them.

The tables are those of docs/from_*.md, in short.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Words = Mapping[str, tuple[str, str]]
"""By the word in small letters, with underscores: whose word it is, and what to write."""

_BREVITAS, _DISTILLER, _VITIS, _NEURON = "Brevitas", "Distiller", "Vitis", "torch-neuron"
_PER_CHANNEL = "'*.weight.granularity=per-channel'"
_ELEMENTWISE = "'*.acc.KEY=...' for the sum of both products, '*.cell_state*.KEY=...' for f c, i g and their sum"

FORMATS: Words = {
    "io_quant": (_BREVITAS, "'*.input.KEY=...' '*.hidden.KEY=...'"),
    "weight_quant": (_BREVITAS, "'*.weight.KEY=...'"),
    "bias_quant": (_BREVITAS, "'*.bias.KEY=...'"),
    "gate_acc": (_BREVITAS, "'*.acc.KEY=...'"),
    "gate_acc_quant": (_BREVITAS, "'*.acc.KEY=...'"),
    "sigmoid_quant": (_BREVITAS, "'*.input_gate.activation.KEY=...', the same of output_gate and forget_gate"),
    "tanh_quant": (_BREVITAS, "'*.cell_gate.activation.KEY=...' '*.hidden.activation.KEY=...'"),
    "cell_state_quant": (_BREVITAS, "'*.cell_state*.KEY=...'"),
    "bit_width": (_BREVITAS, "bits, as in '*.weight.bits=4'"),
    "weight_bit_width": (_BREVITAS, "'*.weight.bits=4'"),
    "bias_bit_width": (_BREVITAS, "'*.bias.bits=16'"),
    "io_bit_width": (_BREVITAS, "'*.input.bits=6' '*.hidden.bits=6'"),
    "gate_acc_bit_width": (_BREVITAS, "'*.acc.bits=6'"),
    "sigmoid_bit_width": (_BREVITAS, "'*.input_gate.activation.bits=6', the same of output_gate and forget_gate"),
    "tanh_bit_width": (_BREVITAS, "'*.cell_gate.activation.bits=6' '*.hidden.activation.bits=6'"),
    "cell_state_bit_width": (_BREVITAS, "'*.cell_state*.bits=6'"),
    "scaling_per_output_channel": (_BREVITAS, _PER_CHANNEL),
    "weight_scaling_per_output_channel": (_BREVITAS, _PER_CHANNEL),
    "narrow_range": (_BREVITAS, "narrow=true"),
    "restrict_scaling_type": (_BREVITAS, "pow2=true for POWER_OF_TWO"),
    "float_to_int_impl_type": (_BREVITAS, "rounding=half_even for ROUND, floor, ceil, toward_zero"),
    "round": (_BREVITAS, "rounding=half_even"),
    "round_to_zero": (_BREVITAS, "rounding=toward_zero"),
    "return_quant_tensor": (_BREVITAS, "'*.hidden.rounded_output=true', --quantized-outputs NAME for integers"),
    "shared_intra_layer_weight_quant": (
        _BREVITAS, "'*.weight.granularity=per-tensor' with '*.weight.share={cell}/weight', as brevitas-int8 has it",
    ),
    "shared_intra_layer_gate_acc_quant": (_BREVITAS, "'*.acc.share={cell}/acc'"),
    "shared_cell_state_quant": (_BREVITAS, "'*.cell_state*.share=cell_state'"),
    "eltwise": (_DISTILLER, _ELEMENTWISE),
    "eltwiseadd_gate": (_DISTILLER, "'*.acc.KEY=...'"),
    "eltwiseadd_cell": (_DISTILLER, "'*.cell_state.KEY=...'"),
    "eltwisemult_cell_forget": (_DISTILLER, "'*.cell_state.kept.KEY=...'"),
    "eltwisemult_cell_input": (_DISTILLER, "'*.cell_state.added.KEY=...'"),
    "eltwisemult_hidden": (_DISTILLER, "'*.hidden.KEY=...'"),
    "fc_gate_x": (_DISTILLER, "'*.W.weight.KEY=...', '*.input_product.KEY=...' for what it makes"),
    "fc_gate_h": (_DISTILLER, "'*.R.weight.KEY=...', '*.hidden_product.KEY=...' for what it makes"),
    "act_i": (_DISTILLER, "'*.input_gate.activation.KEY=...'"),
    "act_f": (_DISTILLER, "'*.forget_gate.activation.KEY=...'"),
    "act_o": (_DISTILLER, "'*.output_gate.activation.KEY=...'"),
    "act_g": (_DISTILLER, "'*.cell_gate.activation.KEY=...'"),
    "act_h": (_DISTILLER, "'*.hidden.activation.KEY=...'"),
    "encoder": (_DISTILLER, "--rest int8; '<node>.weight.bits=none' leaves one float, `rnnqc inspect` lists them"),
    "decoder": (_DISTILLER, "--rest int8; '<node>.weight.bits=none' leaves one float, `rnnqc inspect` lists them"),
    "bits_activations": (_DISTILLER, "bits, as in '*.input.bits=8' '*.acc.bits=8'"),
    "bits_acts": (_DISTILLER, "bits, as in '*.input.bits=8' '*.acc.bits=8'"),
    "bits_parameters": (_DISTILLER, "'*.weight.bits=8'"),
    "bits_weights": (_DISTILLER, "'*.weight.bits=8'"),
    "bits_bias": (_DISTILLER, "'*.bias.bits=32'"),
    "bits_accum": (_DISTILLER, "'*.accumulator.bits=24'"),
    "per_channel_wts": (_DISTILLER, _PER_CHANNEL),
    "clip_acts": (_DISTILLER, "range=average for AVG, min-max for NONE, n-std, gauss, laplace"),
    "clip_n_stds": (_DISTILLER, "n_std, with range=n-std"),
    "clip_half_range": (_DISTILLER, "half_range"),
    "scale_approx_mult_bits": (_DISTILLER, "scale_bits"),
    "avg": (_DISTILLER, "range=average"),
    "n_std": (_DISTILLER, "range=n-std"),
    "symmetric_restricted": (_DISTILLER, "symmetric=true narrow=true, one key a --set"),
    "asymmetric_signed": (_DISTILLER, "symmetric=false signed=true, one key a --set"),
    "asymmetric_unsigned": (_DISTILLER, "symmetric=false signed=false, one key a --set"),
    "fp16": (_DISTILLER, "bits=none, which leaves a value in float; --recipe fp16 for weights of float16"),
    "bitwidth": (_VITIS, "bits, as in '*.weight.bits=8'; recipes pow2-int16, pow2-w8a16, pow2-int8-floor"),
    "fix_pos": (_VITIS, "scale=0.0625 for fix position 4: scale is 2**-position; max_fix_position limits it"),
    "fix_position": (_VITIS, "scale=0.0625 for fix position 4: scale is 2**-position; max_fix_position limits it"),
    "diffs_mode": (_VITIS, "range=pow2-mse for mse, range=pow2-max for maxmin"),
    "maxmin": (_VITIS, "range=pow2-max"),
}  # fmt: skip
"""In overrides and recipe files: points, keys and values."""

OPTIONS: Words = {
    "mode": (
        _DISTILLER,
        "--recipe distiller-sym or distiller-asym",
    ),
    "quant_mode": (_VITIS, "`rnnqc calibrate` is calib, `rnnqc lower` writes the model, `rnnqc evaluate` is test"),
    "subset_len": (_VITIS, "`rnnqc calibrate --num-samples N`"),
    "bitwidth": (_VITIS, "`rnnqc lower --recipe pow2-int16`, pow2-w8a16 or pow2-int8-floor"),
    "output_dir": (_VITIS, "-o"),
    "deploy": (_VITIS, "`rnnqc dump`"),
    "deploy_check": (_VITIS, "`rnnqc dump`"),
    "qe_calibration": (_DISTILLER, "--calibration DATA"),
    "qe_stats_file": (_DISTILLER, "--stats STATS.json"),
    "qe_config_file": (_DISTILLER, "--recipe FILE.toml"),
    "qe_clip_acts": (_DISTILLER, "--set '*.range=average' for AVG"),
    "qe_per_channel": (_DISTILLER, f"--set {_PER_CHANNEL}"),
    "clip_acts": (_DISTILLER, "--set '*.range=average' for AVG, or --recipe distiller-avg"),
    "overrides": (_DISTILLER, "--set, or --recipe FILE.toml"),
    "return_quant_tensor": (_BREVITAS, "--quantized-outputs NAME"),
    "weight_bit_width": (_BREVITAS, "--set '*.weight.bits=4'"),
    "io_bit_width": (_BREVITAS, "--set '*.input.bits=6' '*.hidden.bits=6'"),
}
"""Of the command line."""

COMMANDS: Words = {
    "calib": (_VITIS, "`rnnqc calibrate`"),
    "test": (_VITIS, "`rnnqc evaluate`"),
    "deploy": (_VITIS, "`rnnqc lower`"),
    "quantize": ("another tool", "`rnnqc lower`"),
    "compile": ("another tool", "`rnnqc lower`"),
    "trace": (_NEURON, "`rnnqc lower`"),
    "analyze": (_NEURON, "`rnnqc inspect`"),
    "analyze_model": (_NEURON, "`rnnqc inspect`"),
}

RECIPES: Words = {
    "brevitas": (_BREVITAS, "brevitas-int8"),
    "distiller": (_DISTILLER, "distiller-sym, distiller-asym or distiller-avg"),
    "avg": (_DISTILLER, "distiller-avg"),
    "symmetric": (_DISTILLER, "distiller-sym"),
    "asymmetric_signed": (_DISTILLER, "distiller-asym"),
    "vitis": (_VITIS, "pow2-int16, pow2-w8a16 or pow2-int8-floor"),
    "quant_info": (_VITIS, "`rnnqc lower --save-formats FILE.toml` writes such a file, --recipe FILE.toml reads it"),
}


def counterpart(text: str, words: Words) -> str:
    """What the first word of another tool in `text` is called here; "" if there is none.

    Args:
        text: What the user wrote.
        words: The words that are looked for.
    """
    for found in re.findall(r"\w+", text.replace("-", "_")):
        word = found.lower().strip("_")
        if word in words:
            tool, ours = words[word]
            return f"{found.strip('_')} ({tool}): {ours}"
    return ""


def or_counterpart(action: str, text: str, words: Words) -> str:
    """An action, with what a word of another tool in `text` is called here in front."""
    return "; ".join(filter(None, (counterpart(text, words), action)))
