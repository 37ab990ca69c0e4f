"""Translates words of other tools to rnnqc's, for messages to users who come from them.

The tables are short forms of those in docs/from_*.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Words = Mapping[str, tuple[str, str]]
"""By the word in lower case, with underscores: the tool it belongs to, and what to write instead."""

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
    "scaling_impl_type": (_BREVITAS, "range=percentile for PARAMETER_FROM_STATS and STATS, scale=0.0625 for CONST"),
    "input_quant": (_BREVITAS, "'*.input.KEY=...'"),
    "output_quant": (_BREVITAS, "'*.hidden.KEY=...'"),
    "shared_input_hidden_weights": (_BREVITAS, "'*.weight.share={layer}/weight' where both directions have one W"),
    "coupled_input_forget_gates": (_BREVITAS, "the model's attribute input_forget; `rnnqc inspect` shows it"),
    "cat_output_cell_states": (_BREVITAS, "not needed, Y_c is float; '*.cell_state*.share=cell_state' for one scale"),
    "high_percentile_q": (_BREVITAS, "percentile, with range=percentile"),
    "scaling_stats_momentum": (_BREVITAS, "range=ema-percentile, which has Brevitas' momentum of 0.1"),
    "collect_stats_steps": (_BREVITAS, "range=ema-percentile, which takes the first 300 calls as Brevitas does"),
    "power_of_two": (_BREVITAS, "pow2=true"),
    "dpu": (_BREVITAS, "rounding=half_even_up"),
    "signedbinaryweightpertensorconst": (_BREVITAS, "'*.weight.bits=1' '*.weight.granularity=per-tensor'"),
    "int8weightpertensorfloat": (_BREVITAS, "'*.weight.bits=8' '*.weight.granularity=per-tensor'"),
    "int8actpertensorfloat": (_BREVITAS, "--recipe brevitas-int8"),
    "uint8actpertensorfloat": (_BREVITAS, "--recipe brevitas-int8"),
    "int32bias": (_BREVITAS, "'*.bias.bits=32'"),
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
    "symmetric_signed": (_DISTILLER, "symmetric=true signed=true, one key a --set"),
    "eltwiseadd": (_DISTILLER, _ELEMENTWISE),
    "eltwisemult": (_DISTILLER, _ELEMENTWISE),
    "input_overrides": (_DISTILLER, "'*.input.KEY=...'"),
    "fpq_module": (_DISTILLER, "bits=none, which leaves a value in float"),
    "clip_mode": (_DISTILLER, "range=average for AVG, min-max for NONE, n-std, gauss, laplace"),
    "also_clip_weights": (_DISTILLER, "'*.weight.range=mse'"),
    "per_channel": (_DISTILLER, _PER_CHANNEL),
    "avg_min": (_DISTILLER, "range=average"),
    "avg_max": (_DISTILLER, "range=average"),
    "lapq": (_DISTILLER, "range=mse, which finds ranges from statistics"),
    "bitwidth": (_VITIS, "bits, as in '*.weight.bits=8'; recipes pow2-int16, pow2-w8a16, pow2-int8-floor"),
    "fix_pos": (_VITIS, "scale=0.0625 for fix position 4: scale is 2**-position; max_fix_position limits it"),
    "fix_position": (_VITIS, "scale=0.0625 for fix position 4: scale is 2**-position; max_fix_position limits it"),
    "diffs_mode": (_VITIS, "range=pow2-mse for mse, range=pow2-max for maxmin"),
    "maxmin": (_VITIS, "range=pow2-max"),
    "bw": (_VITIS, "bits, as in '*.weight.bits=8'"),
    "fp": (_VITIS, "scale=0.0625 for fix position 4: scale is 2**-position; max_fix_position limits it"),
    "mix_bit": (_VITIS, "bits of any point, as in '*.weight.bits=4'"),
    "weight_ii": (_VITIS, "'*.W.weight.KEY=...', whose columns are those of all gates"),
    "weight_hi": (_VITIS, "'*.R.weight.KEY=...', whose columns are those of all gates"),
    "bias_i": (_VITIS, "'*.bias.KEY=...', whose elements are those of all gates"),
    "y_i": (_VITIS, "'*.input_gate.acc.KEY=...'"),
    "y_f": (_VITIS, "'*.forget_gate.acc.KEY=...'"),
    "y_g": (_VITIS, "'*.cell_gate.acc.KEY=...'"),
    "y_o": (_VITIS, "'*.output_gate.acc.KEY=...'"),
    "half_away_from_zero": (_VITIS, "rounding=half_away"),
    "trunc": (_VITIS, "rounding=floor for RNN features, toward_zero"),
    "tanh_sigmoid_sim": (_VITIS, "'*.activation.table=exact'"),
    "nndct_tanh_sigmoid_sim": (_VITIS, "'*.activation.table=exact'"),
    "nndct_max_fix_position": (_VITIS, "'*.max_fix_position=12'"),
    "param_corr": (_VITIS, "'*.weight.bias_correction=true'"),
    "bias_corr": (_VITIS, "'*.weight.bias_correction=true'"),
}  # fmt: skip
"""Words in overrides and recipe files: points, keys and values."""

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
    "qe_mode": (_DISTILLER, "--recipe distiller-sym or distiller-asym"),
    "qe_mode_acts": (_DISTILLER, "--recipe distiller-sym or distiller-asym"),
    "qe_mode_wts": (_DISTILLER, "--recipe distiller-sym or distiller-asym"),
    "qe_bits_acts": (_DISTILLER, "--set '*.input.bits=8' '*.hidden.bits=8' '*.acc.bits=8'"),
    "qe_bits_wts": (_DISTILLER, "--set '*.weight.bits=8'"),
    "qe_bits_accum": (_DISTILLER, "--set '*.accumulator.bits=24'"),
    "qe_clip_n_stds": (_DISTILLER, "--set '*.weight.range=min-max' '*.range=n-std' '*.n_std=4'"),
    "qe_no_clip_layers": (_DISTILLER, "--set 'layer*.range=min-max' in front of the others"),
    "qe_no_quant_layers": (_DISTILLER, "--set 'layer*.bits=none'"),
    "qe_scale_approx_bits": (_DISTILLER, "--set '*.scale_bits=8'"),
    "qe_dynamic": (_DISTILLER, "--recipe int8, which needs no statistics"),
    "qe_lapq": (_DISTILLER, "--set '*.range=mse'; `rnnqc tune` searches widths by the loss"),
    "model_activation_stats": (_DISTILLER, "--stats STATS.json"),
    "save_fp_weights": (_DISTILLER, "not needed: `rnnqc lower` leaves the float model as it is"),
    "mix_bit": (_VITIS, "--set '*.weight.bits=4' for any point; `rnnqc tune` searches"),
    "qat_proc": (_VITIS, "not here; `rnnqc lower` keeps the quantization of a model trained with Brevitas"),
    "lstm": (_VITIS, "not needed: `rnnqc inspect` lists the recurrent layers that are found"),
    "state_dict_file": (_VITIS, "not needed: `rnnqc lower` reads weights from the ONNX file"),
    "input_args": (_VITIS, "not needed: `rnnqc lower` reads inputs from the ONNX file"),
    "input_signature": (_VITIS, "not needed: `rnnqc lower` reads inputs from the ONNX file"),
    "fast_finetune": (_VITIS, "`rnnqc calibrate` for --stats: weights are rounded so that their errors cancel"),
    "device": (_VITIS, "not needed: `rnnqc calibrate` runs on the CPU, and statistics are the same on every device"),
    "example_inputs": (_NEURON, "not needed: `rnnqc lower` reads inputs from the ONNX file"),
    "enforce_sorted": (_NEURON, "not needed: lengths may have any order; `rnnqc lower --remove-sorting`"),
    "compiler_workdir": (_NEURON, "-o"),
    "fallback": (_NEURON, "not needed: layers stay float and are listed; `rnnqc lower --strict` refuses"),
    "dynamic_batch_size": (_NEURON, "not needed: the batch may stay open; `rnnqc lower --dim NAME=N` binds it"),
    "batch_lengths": (_VITIS, "`rnnqc layer --lengths`"),
    "go_forward": (_VITIS, "`rnnqc layer --reverse`"),
    "initial_state": (_VITIS, "`rnnqc layer --initial-states`"),
    "weight_bit_width": (_BREVITAS, "--set '*.weight.bits=4'"),
    "io_bit_width": (_BREVITAS, "--set '*.input.bits=6' '*.hidden.bits=6'"),
}
"""Words of the command line."""

COMMANDS: Words = {
    "calib": (_VITIS, "`rnnqc calibrate`"),
    "test": (_VITIS, "`rnnqc evaluate`"),
    "deploy": (_VITIS, "`rnnqc lower`"),
    "quantize": ("another tool", "`rnnqc lower`"),
    "compile": ("another tool", "`rnnqc lower`"),
    "trace": (_NEURON, "`rnnqc lower`"),
    "analyze": (_NEURON, "`rnnqc inspect`"),
    "analyze_model": (_NEURON, "`rnnqc inspect`"),
    "export_xmodel": (_VITIS, "`rnnqc lower`"),
    "export_quant_config": (_VITIS, "`rnnqc calibrate`"),
    "dump_rnn_outputs_by_timestep": (_VITIS, "`rnnqc dump`"),
    "dump_xmodel": (_VITIS, "`rnnqc lower`"),
    "export_qonnx": (_BREVITAS, "`rnnqc lower --form qonnx`"),
    "export_onnx_qcdq": (_BREVITAS, "`rnnqc lower --form qcdq`"),
    "calibration_mode": (_BREVITAS, "`rnnqc calibrate`"),
    "bias_correction_mode": (_BREVITAS, "`rnnqc calibrate`; recipes with compensation undo the mean error"),
    "collect_quant_stats": (_DISTILLER, "`rnnqc calibrate`"),
    "collector": (_DISTILLER, "`rnnqc calibrate`"),
    "prepare_model": (_DISTILLER, "`rnnqc lower`"),
    "convert_to_pytorch": (_DISTILLER, "`rnnqc lower`"),
    "lapq": (_DISTILLER, "`rnnqc tune`"),
    "greedy": (_DISTILLER, "`rnnqc tune`"),
    "nndct_stat": (_VITIS, "`rnnqc report`"),
}

RECIPES: Words = {
    "brevitas": (_BREVITAS, "brevitas-int8"),
    "distiller": (_DISTILLER, "distiller-sym, distiller-asym or distiller-avg"),
    "avg": (_DISTILLER, "distiller-avg"),
    "symmetric": (_DISTILLER, "distiller-sym"),
    "asymmetric_signed": (_DISTILLER, "distiller-asym"),
    "vitis": (_VITIS, "pow2-int16, pow2-w8a16 or pow2-int8-floor"),
    "int8weightpertensorfloat": (_BREVITAS, "brevitas-int8"),
    "int8actpertensorfloat": (_BREVITAS, "brevitas-int8"),
    "quantlstm": (_BREVITAS, "brevitas-int8"),
    "quantrnn": (_BREVITAS, "brevitas-int8"),
    "post_train": (_DISTILLER, "distiller-sym, distiller-asym or distiller-avg"),
    "dynamic": (_DISTILLER, "int8, whose input has a scale for each row, as in `rnnqc lower` without --recipe"),
    "nndct": (_VITIS, "pow2-int16, pow2-w8a16 or pow2-int8-floor"),
    "quant_config": (_VITIS, "`rnnqc lower --save-formats FILE.toml` writes such a file, --recipe FILE.toml reads it"),
    "quant_info": (_VITIS, "`rnnqc lower --save-formats FILE.toml` writes such a file, --recipe FILE.toml reads it"),
}


def counterpart(text: str, words: Words) -> str:
    """Translates the first word of another tool in `text`; "" if there is none.

    Args:
        text: The text of the user.
        words: The words to look for.
    """
    for found in re.findall(r"\w+", text.replace("-", "_")):
        word = found.lower().strip("_")
        if word in words:
            tool, ours = words[word]
            return f"{found.strip('_')} ({tool}): {ours}"
    return ""


def or_counterpart(action: str, text: str, words: Words) -> str:
    """Returns an action, preceded by the translation of another tool's word in `text`."""
    return "; ".join(filter(None, (counterpart(text, words), action)))
