"""The constant operands of a cell's integer form."""

from __future__ import annotations

from dataclasses import fields

from rnnqc.cells import stages
from rnnqc.ir import Value

Operands = stages.Operands[Value]
OPERANDS = frozenset(f.name for f in fields(stages.Operands))


def names_of(operands: Operands) -> stages.OperandNames:
    """Returns the names of operands."""
    return stages.OperandNames(**{k: v.name for k, v in operands.as_dict().items()})
