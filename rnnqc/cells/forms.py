"""The forms that a recurrent layer can have in a model."""

from __future__ import annotations

FLOAT, QCDQ, INTEGER, FUSED, QONNX = "float", "qcdq", "integer", "fused", "qonnx"
"""Of cells: before a recipe; with quantizers in the graph; with integer matmuls; one node each; as Brevitas exports."""
FORMS = (FUSED, INTEGER, QCDQ)
"""The forms that every recipe of cells has."""
ORT = "ort"
"""Of LSTM nodes: onnxruntime's own quantized operator on stored weights."""
ORT_DOMAIN, ORT_LSTM = "com.microsoft", "DynamicQuantizeLSTM"
EVERY_FORM = (*FORMS, QONNX, ORT)
WEIGHT_ONLY = "weight-only"
"""Of ONNX's own recurrent operators whose weights are stored in fewer bits."""
ON_STORED_WEIGHTS = (WEIGHT_ONLY, ORT)
"""Without cells: W and R are all that a recipe gives formats to."""
CUSTOM = "products"
"""Of custom cells: their matmuls are integer, where they are."""
