"""`rnnqc.lower`: turns a float model and options into a lowered model and a report.

`lower.py` reads in this order: `plan.py` chooses recipe, form and passes, and calibrates; `run.py` runs the passes, and
`recovery.py` compares recovered layers with the original; `judge.py` makes the report, with `reports/` and
`measurement.py`; `record.py` writes metadata about the lowering into the model. `failures.py` has the checks that the
command line adds, `inspection.py` lists layers without lowering them. `executable.py` and `runnable.py` convert models
that onnxruntime refuses to ones that it runs.
"""
