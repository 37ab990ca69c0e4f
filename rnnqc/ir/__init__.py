"""The editable model: onnx-graphsurgeon for editing, and a record of everything that graphsurgeon would lose.

graphsurgeon 0.6 drops, on a round trip: metadata and documentation of models, graphs, nodes and values, quantization
annotations, dimension denotations, `overload` of nodes and functions, attributes of unusual types, unused initializers,
and initializers listed as graph inputs; and its topological sort recurses. `Model` keeps the original protobuf object
of everything imported beside the graphsurgeon object and writes it back where nothing was changed.

This package is the only one that imports onnx_graphsurgeon.
"""

from __future__ import annotations

from rnnqc.ir.dead_code import cut_edges
from rnnqc.ir.model import Model
from rnnqc.ir.objects import (
    CELL_TAG,
    CELLS_KEY,
    CUSTOM_TAG,
    DOMAIN,
    DOMAIN_VERSION,
    FLOAT_TAG,
    PROVENANCE_KEY,
    RELEASED_TAG,
    Constant,
    Graph,
    GraphInfo,
    Node,
    NodeInfo,
    Value,
    Variable,
    attribute,
    attribute_reference,
    captured_values,
    captures,
    constant_array,
    dense_array,
    display_name,
    dtype_of,
    graph_info,
    graphs_below,
    info,
    input_or_none,
    maker_of,
    output_number,
    output_or_none,
    safe_name,
    shape_of,
    subgraphs,
)
from rnnqc.ir.protos import export_nodes, tensor_of, with_released_cells

__all__ = [
    "CELLS_KEY", "CELL_TAG", "CUSTOM_TAG", "DOMAIN", "DOMAIN_VERSION", "FLOAT_TAG", "PROVENANCE_KEY", "RELEASED_TAG",
    "Constant",
    "Graph", "GraphInfo", "Model", "Node", "NodeInfo", "Value", "Variable", "attribute", "attribute_reference",
    "captured_values", "captures", "constant_array", "cut_edges", "dense_array", "display_name", "dtype_of",
    "export_nodes", "graph_info", "graphs_below", "info", "input_or_none", "maker_of", "output_number",
    "output_or_none", "safe_name", "shape_of", "subgraphs", "tensor_of", "with_released_cells",
]  # fmt: skip
