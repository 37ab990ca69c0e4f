"""The passes: each replaces one form of a model by another, in one file."""

from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.brevitas.lower_quant_operators import LowerQuantOperators
from rnnqc.passes.brevitas.read_quant_lstm_cell import ReadQuantLstmCell
from rnnqc.passes.brevitas.write_qonnx import WriteQonnx
from rnnqc.passes.cells.decompose_lstm import DecomposeLstm
from rnnqc.passes.custom_cells.fuse_custom_cells import FuseCustomCells
from rnnqc.passes.custom_cells.quantize_custom_cells import QuantizeCustomCells
from rnnqc.passes.custom_cells.read_dynamic_products import ReadDynamicProducts
from rnnqc.passes.custom_cells.roll_custom_steps import RollCustomSteps
from rnnqc.passes.custom_cells.write_rows import WriteRows
from rnnqc.passes.custom_cells.write_scans import WriteScans
from rnnqc.passes.instruments import DumpAfterChange, Timing, VerifyModified
from rnnqc.passes.linear.quantize_linear import QuantizeLinear
from rnnqc.passes.linear.unfold_convolutions import UnfoldConvolutions
from rnnqc.passes.manager import Instrument, PassManager
from rnnqc.passes.normalize.canonicalize import Canonicalize
from rnnqc.passes.normalize.compute_in_float32 import ComputeInFloat32
from rnnqc.passes.normalize.fold_constants import FoldConstants
from rnnqc.passes.normalize.fold_product_weights import FoldProductWeights
from rnnqc.passes.normalize.read_ort_lstm import ReadOrtLstm
from rnnqc.passes.normalize.read_weight_codes import ReadWeightCodes
from rnnqc.passes.normalize.remove_idle_casts import RemoveIdleCasts
from rnnqc.passes.normalize.remove_open_masks import RemoveOpenMasks
from rnnqc.passes.normalize.remove_sorting import RemoveSorting
from rnnqc.passes.normalize.remove_stacks import RemoveStacks
from rnnqc.passes.normalize.remove_whole_writes import RemoveWholeWrites
from rnnqc.passes.normalize.repair_lstm_export import RepairLstmExport
from rnnqc.passes.normalize.simplify_sequences import SimplifySequences
from rnnqc.passes.normalize.split_fused_operators import SplitFusedOperators
from rnnqc.passes.normalize.widen_products import WidenProducts
from rnnqc.passes.normalize.write_choices import WriteChoices
from rnnqc.passes.normalize.write_sequence_maps import WriteSequenceMaps
from rnnqc.passes.qcdq.insert_qcdq import InsertQcdq
from rnnqc.passes.recover.recognize_steps import RecognizeSteps
from rnnqc.passes.recover.recover_loops import RecoverLoops
from rnnqc.passes.recover.roll_steps import RollSteps
from rnnqc.passes.recover.widen_steps import WidenSteps
from rnnqc.passes.render.cleanup import Cleanup
from rnnqc.passes.render.fold_scales import FoldScales
from rnnqc.passes.render.fuse_quant_lstm_cell import FuseQuantLstmCell
from rnnqc.passes.render.quantize_outputs import QuantizeOutputs
from rnnqc.passes.render.restore_nodes import RestoreNodes
from rnnqc.passes.render.shorten_names import ShortenNames
from rnnqc.passes.render.unroll import Unroll
from rnnqc.passes.rest.fold_weights import FoldWeights
from rnnqc.passes.rest.quantize_embeddings import QuantizeEmbeddings
from rnnqc.passes.rest.store_weights import StoreWeights
from rnnqc.passes.rest.widen_operators import WidenOperators
from rnnqc.passes.verify.verify_numerics import VerifyNumerics
from rnnqc.passes.views.fuse_views import FuseViews
from rnnqc.passes.views.join_views import JoinViews
from rnnqc.passes.views.store_shapes import StoreShapes
from rnnqc.passes.weight_only.quantize_weights import QuantizeWeights
from rnnqc.passes.weight_only.write_ort_lstm import WriteOrtLstm

__all__ = [
    "Canonicalize",
    "Cleanup",
    "ComputeInFloat32",
    "DecomposeLstm",
    "DumpAfterChange",
    "FoldConstants",
    "FoldProductWeights",
    "FoldScales",
    "FoldWeights",
    "FuseCustomCells",
    "FuseQuantLstmCell",
    "FuseViews",
    "InsertQcdq",
    "Instrument",
    "JoinViews",
    "LowerQuantOperators",
    "Pass",
    "PassInfo",
    "PassManager",
    "PassResult",
    "QuantizeCustomCells",
    "QuantizeEmbeddings",
    "QuantizeLinear",
    "QuantizeOutputs",
    "QuantizeWeights",
    "ReadDynamicProducts",
    "ReadOrtLstm",
    "ReadQuantLstmCell",
    "ReadWeightCodes",
    "RecognizeSteps",
    "RecoverLoops",
    "RemoveIdleCasts",
    "RemoveOpenMasks",
    "RemoveSorting",
    "RemoveStacks",
    "RemoveWholeWrites",
    "RepairLstmExport",
    "RestoreNodes",
    "RollCustomSteps",
    "RollSteps",
    "ShortenNames",
    "SimplifySequences",
    "SplitFusedOperators",
    "StoreShapes",
    "StoreWeights",
    "Timing",
    "UnfoldConvolutions",
    "Unroll",
    "VerifyModified",
    "VerifyNumerics",
    "WidenOperators",
    "WidenProducts",
    "WidenSteps",
    "WriteChoices",
    "WriteOrtLstm",
    "WriteQonnx",
    "WriteRows",
    "WriteScans",
    "WriteSequenceMaps",
]
