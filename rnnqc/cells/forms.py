"""The forms that a recurrent layer can have in a model."""

from __future__ import annotations

FLOAT, QCDQ, INTEGER, FUSED, QONNX = "float", "qcdq", "integer", "fused", "qonnx"
"""Forms of cells: before a recipe; quantizers in the graph; integer matmuls; one node each; as Brevitas exports."""
FORMS = (FUSED, INTEGER, QCDQ)
"""The forms that every recipe of cells has."""
ORT = "ort"
"""Form of LSTM nodes: onnxruntime's own quantized operator on stored weights."""
ORT_DOMAIN, ORT_LSTM = "com.microsoft", "DynamicQuantizeLSTM"
EVERY_FORM = (*FORMS, QONNX, ORT)
WEIGHT_ONLY = "weight-only"
"""Form of ONNX's own recurrent operators whose weights are stored in fewer bits."""
ON_STORED_WEIGHTS = (WEIGHT_ONLY, ORT)
"""Forms without cells: a recipe only gives formats to W and R."""
CUSTOM = "products"
"""Form of custom cells, whose matmuls are integer in place."""
