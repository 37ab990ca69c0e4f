"""Every list of passes, each pass with the folder of its stage.

A model goes through `normalize` and `recover`, which leave clean recurrent nodes, and then through the stages that its
recipe and form require. The pass manager checks that earlier passes establish what each pass requires.
"""

from __future__ import annotations

from collections.abc import Sequence

from rnnqc.cells.forms import FUSED, ORT, QCDQ, QONNX, WEIGHT_ONLY
from rnnqc.cells.types import LSTM
from rnnqc.data.statistics import Statistics
from rnnqc.passes.base import Pass
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
from rnnqc.passes.invariants import Property
from rnnqc.passes.linear.quantize_linear import QuantizeLinear
from rnnqc.passes.linear.unfold_convolutions import UnfoldConvolutions
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
from rnnqc.passes.rest.int8_weights import Int8Weights
from rnnqc.passes.rest.quantize_embeddings import QuantizeEmbeddings
from rnnqc.passes.rest.store_weights import StoreWeights
from rnnqc.passes.rest.widen_operators import WidenOperators
from rnnqc.passes.views.fuse_views import FuseViews
from rnnqc.passes.views.join_views import JoinViews
from rnnqc.passes.views.store_shapes import StoreShapes
from rnnqc.passes.weight_only.quantize_weights import QuantizeWeights
from rnnqc.passes.weight_only.write_ort_lstm import WriteOrtLstm
from rnnqc.recipes.recipe import Recipe

NORMAL_FORM = frozenset({Property.CANONICAL})
"""Properties after `normal_form`."""
EXPORTED = frozenset({Property.CANONICAL, Property.SCALES_FOLDED})
"""The same for a model that keeps its own quantization: it has no cell with scales to fold."""


def normal_form(
    *, keep_codes: bool = False, fold: bool = False, remove_sorting: bool = False, scans: bool = True
) -> list[Pass]:
    """Passes that turn any exporter's file into one whose recurrent layers are clean recurrent nodes.

    Args:
        keep_codes: Whether weights that are stored as quantized values keep them.
        fold: Whether to compute everything that follows from bound inputs and dimensions.
        remove_sorting: Whether to remove sorts of a batch by length.
        scans: Whether loops of custom cells become Scans; of no use where they stay float.
    """
    return [
        *([ReadDynamicProducts()] if scans and not keep_codes else []),  # custom_cells: integer products become floats
        *([] if keep_codes else [ReadOrtLstm()]),  # normalize: onnxruntime's quantized LSTMs become LSTMs
        *([Canonicalize(keep_codes=keep_codes), *optional_passes()] if remove_sorting else []),  # normalize: no sorts
        RepairLstmExport(),  # normalize: an exported fixed batch dimension becomes dynamic
        ReadWeightCodes(keep=keep_codes),  # normalize: quantized weights become one constant each
        Canonicalize(keep_codes=keep_codes),  # normalize: recurrent nodes get one layout and explicit attributes
        WriteSequenceMaps(),  # normalize: maps over sequences of tensors become loops
        SplitFusedOperators(),  # normalize: onnxruntime's fused operators become separate ones
        *([FoldConstants()] if fold else []),  # normalize: known shapes, indices and conditions are computed
        ComputeInFloat32(),  # normalize: float16 and float64 nodes get Casts around them
        WidenProducts(),  # normalize: so do float16 matmuls that crash onnxruntime
        RemoveIdleCasts(),  # normalize: redundant casts in loops are removed
        WriteChoices(),  # normalize: sums of products with a condition and its opposite become choices
        RemoveOpenMasks(),  # normalize: masks over states that hold no step are removed
        RemoveWholeWrites(),  # normalize: writes that overwrite a whole tensor are removed
        RemoveStacks(),  # normalize: stacks of values that are split again are removed
        WidenSteps(),  # recover: unrolled float16 steps compute in float32
        *([WriteRows()] if scans else []),  # custom_cells: products of columns in recurrences become products of rows
        RecognizeSteps(),  # recover: steps written in other operators become LSTM, GRU and RNN nodes of one step
        RollSteps(),  # recover: unrolled steps become one node
        RecoverLoops(),  # recover: loops over steps become one node
        *([] if fold else [FoldConstants(floats=False)]),  # normalize: known shapes, indices, conditions are computed
        FoldProductWeights(),  # normalize: weights of custom cells that are computed from constants become constants
        *([RollCustomSteps()] if scans else []),  # custom_cells: unrolled steps of custom cells become Scans
        SimplifySequences(),  # normalize: redundant operators between sequences and recurrent nodes are removed
        *([WriteScans()] if scans else []),  # custom_cells: loops of custom cells become Scans
    ]


def default_passes(recipe: Recipe, form: str, unroll: bool, statistics: Statistics | None = None) -> list[Pass]:
    """Passes that lower a model by a recipe, without those of `--rest int8`."""
    scans = quantizes_custom_cells(recipe, form)
    return [*normal_form(scans=scans), *recipe_passes(recipe, form, unroll, statistics)]


def exported_passes(form: str, unroll: bool) -> list[Pass]:
    """Passes that lower a model which keeps the quantization it was exported with and gets no other."""
    return [*normal_form(keep_codes=True), *own_passes(form, unroll)]


def quantizes_custom_cells(recipe: Recipe, form: str) -> bool:
    """Whether `recipe_passes` quantizes custom cells."""
    return form not in (QONNX, ORT) and recipe.kind != WEIGHT_ONLY


def recipe_passes(
    recipe: Recipe,
    form: str,
    unroll: bool,
    statistics: Statistics | None = None,
    weights: Int8Weights | None = None,
) -> list[Pass]:
    """The passes after the normal form in `default_passes`; with `weights`, those that `--rest int8` needs among them.

    Args:
        recipe: The recipe.
        form: The form to produce.
        unroll: Whether loops are unrolled.
        statistics: The statistics of a calibration.
        weights: The weights of `rest_passes`.
    """
    embeddings = [] if weights is None else embedding_passes(weights)
    if form == QONNX:
        return _qonnx(recipe, statistics)
    if not quantizes_custom_cells(recipe, form):
        return [*_brevitas(form), *embeddings, *_weight_only(recipe, statistics, form)]
    return [*_brevitas(form), *_quantized(recipe, form, unroll, statistics, embeddings), *_rendered(form, unroll)]


def own_passes(form: str, unroll: bool, weights: Int8Weights | None = None) -> list[Pass]:
    """The passes after the normal form in `exported_passes`; `weights` as in `recipe_passes`."""
    embeddings = [] if weights is None else embedding_passes(weights)
    return [Cleanup()] if form == QONNX else [*_brevitas(form), *_rendered(form, unroll), *embeddings]


def embedding_passes(weights: Int8Weights) -> list[Pass]:
    """The first passes of `--rest int8`: a cell that reads an embedding then takes its quantized rows."""
    return [
        *float_weight_passes(weights.recipe),
        QuantizeEmbeddings(weights),  # rest: rows of int8 tables
    ]


def float_weight_passes(recipe: Recipe | None = None) -> list[Pass]:
    """The passes after which each weight that `--rest int8` stores is a float32 constant of its own."""
    return [
        FoldWeights(),  # rest: parts of larger weights, float16 weights behind a Cast
        WidenOperators(recipe),  # rest: operators with float16 weights compute in float32
    ]


def rest_weight_passes(recipe: Recipe | None = None) -> list[Pass]:
    """The passes before `rest_passes`: they store each weight around the recurrent layers as a constant of its own."""
    return [
        *float_weight_passes(recipe),
        UnfoldConvolutions(),  # linear: convolutions over few positions become matmuls
    ]


def rest_passes(
    weights: Int8Weights, recipe: Recipe | None = None, form: str = FUSED, statistics: Statistics | None = None
) -> list[Pass]:
    """The passes of `--rest int8`, after those above: they store the weights around the recurrent layers as int8.

    Passes that share one `Int8Weights` store a tied weight once.
    """
    linear = QuantizeLinear(recipe, weights, statistics, functions=form == FUSED)  # linear: large ones become integer
    return [
        *([linear] if form != QCDQ else []),
        StoreWeights(weights, recipe, statistics),  # rest: all other weights, with float arithmetic
        Cleanup(),  # render
        *([ShortenNames()] if form == FUSED else []),  # render
    ]


def output_passes(names: Sequence[str] = ()) -> list[Pass]:
    """The passes that quantize the named outputs, after the passes of the recipe."""
    return [
        QuantizeOutputs(names),  # render: outputs that are states of cells
    ]


def last_passes(form: str) -> list[Pass]:
    """The passes after all others; none for QONNX files, which keep operators that QONNX tools read."""
    if form == QONNX:
        return []
    return [
        JoinViews(),  # views: fewer operators that only move elements
        StoreShapes(),  # views: shapes that would make onnxruntime lose a state become initializers
        *([FuseViews(), ShortenNames()] if form == FUSED else []),  # views: the remaining ones become one node
    ]


def every_pass(recipe: Recipe, weight_only: Recipe) -> list[Pass]:
    """One instance of each pass, for listings; one recipe is for cells, one for weights alone."""
    passes = [
        *normal_form(fold=True),
        *default_passes(recipe, FUSED, False),
        Unroll(),
        WriteQonnx(),
        *_weight_only(weight_only, None, ORT),
    ]
    weights = Int8Weights()
    passes += [*rest_weight_passes(), *embedding_passes(weights), *rest_passes(weights)]
    passes += [*output_passes(), *last_passes(FUSED)]
    return list({type(p): p for p in passes}.values())


def optional_passes() -> list[Pass]:
    """Passes that run only on request, after `Canonicalize`: by programs, or by `lower(remove_sorting=True)`."""
    return [
        RemoveSorting(),  # normalize: sorts by length around a layer are removed
    ]


def _brevitas(form: str) -> list[Pass]:
    return [
        ReadQuantLstmCell(integer=form != QCDQ),  # brevitas: QuantLSTMCell becomes a cell
        LowerQuantOperators(),  # brevitas: QONNX quantizers become standard operators
    ]


def _quantized(
    recipe: Recipe, form: str, unroll: bool, statistics: Statistics | None, embeddings: Sequence[Pass]
) -> list[Pass]:
    passes: list[Pass] = [
        QuantizeCustomCells(recipe, statistics, integer=form != QCDQ),  # custom_cells: matmuls become integer in place
        *embeddings,
        DecomposeLstm(),  # cells: LSTM, GRU and RNN nodes become explicit Scan loops, float
        InsertQcdq(recipe, statistics, integer=form != QCDQ),  # qcdq: every point gets its format and quantizer
    ]
    if form != QCDQ:
        passes.append(FoldScales(dispatch=not unroll))  # render: integer matmuls, look-ups
    if not unroll:
        passes.append(RestoreNodes())  # render: float cells become nodes again
    return passes


def _rendered(form: str, unroll: bool) -> list[Pass]:
    passes: list[Pass] = [Cleanup()]  # render: dead nodes removed, constants deduplicated, nodes sorted
    if unroll:
        passes += [Unroll(), Cleanup()]  # render: loops become copies of their bodies
    if form == FUSED:
        passes += [FuseQuantLstmCell(), Cleanup()]  # render: each cell becomes one node, backed by a function
        passes += [FuseCustomCells(), Cleanup()]  # custom_cells: so do loops of other equations, on shared weights
        passes.append(ShortenNames())  # render: inside functions
    return passes


def _weight_only(recipe: Recipe, statistics: Statistics | None, form: str) -> list[Pass]:
    moments = {} if statistics is None else statistics.shrunk_moments
    return [
        QuantizeWeights(recipe, moments, (LSTM.op,) if form == ORT else None),  # weight_only: fewer bits
        *([WriteOrtLstm()] if form == ORT else []),  # weight_only: onnxruntime's quantized LSTM
        Cleanup(),  # render
    ]


def _qonnx(recipe: Recipe, statistics: Statistics | None) -> list[Pass]:
    return [
        DecomposeLstm((LSTM.op,)),  # cells: LSTM nodes alone
        InsertQcdq(recipe, statistics, integer=False),  # qcdq
        WriteQonnx(),  # brevitas: quantized cells become Brevitas' nodes
        Cleanup(),  # render
    ]
