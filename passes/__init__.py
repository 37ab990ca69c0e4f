"""The passes: each replaces one form of a model by another, in one file."""

from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.canonicalize import Canonicalize
from rnnqc.passes.cleanup import Cleanup
from rnnqc.passes.compute_in_float32 import ComputeInFloat32
from rnnqc.passes.decompose_lstm import DecomposeLstm
from rnnqc.passes.fold_product_weights import FoldProductWeights
from rnnqc.passes.fold_scales import FoldScales
from rnnqc.passes.fuse_quant_lstm_cell import FuseQuantLstmCell
from rnnqc.passes.insert_qcdq import InsertQcdq
from rnnqc.passes.instruments import DumpAfterChange, Timing, VerifyModified
from rnnqc.passes.lower_quant_operators import LowerQuantOperators
from rnnqc.passes.manager import Instrument, PassManager
from rnnqc.passes.quantize_custom_cells import QuantizeCustomCells
from rnnqc.passes.quantize_weights import QuantizeWeights
from rnnqc.passes.read_quant_lstm_cell import ReadQuantLstmCell
from rnnqc.passes.read_weight_codes import ReadWeightCodes
from rnnqc.passes.recognize_steps import RecognizeSteps
from rnnqc.passes.recover_loops import RecoverLoops
from rnnqc.passes.remove_sorting import RemoveSorting
from rnnqc.passes.repair_lstm_export import RepairLstmExport
from rnnqc.passes.roll_steps import RollSteps
from rnnqc.passes.simplify_sequences import SimplifySequences
from rnnqc.passes.unroll import Unroll
from rnnqc.passes.verify_numerics import VerifyNumerics
from rnnqc.passes.write_qonnx import WriteQonnx

__all__ = [
    "Canonicalize",
    "Cleanup",
    "ComputeInFloat32",
    "DecomposeLstm",
    "DumpAfterChange",
    "FoldProductWeights",
    "FoldScales",
    "FuseQuantLstmCell",
    "InsertQcdq",
    "Instrument",
    "LowerQuantOperators",
    "Pass",
    "PassInfo",
    "PassManager",
    "PassResult",
    "QuantizeCustomCells",
    "QuantizeWeights",
    "ReadQuantLstmCell",
    "ReadWeightCodes",
    "RecognizeSteps",
    "RecoverLoops",
    "RemoveSorting",
    "RepairLstmExport",
    "RollSteps",
    "SimplifySequences",
    "Timing",
    "Unroll",
    "VerifyModified",
    "VerifyNumerics",
    "WriteQonnx",
]
