"""Messages of rnnqc to its users: errors, and remarks about sites that a pass did not handle.

Three kinds of failure, never mixed:

* `CompileError`: the user's model, data or options. The message says what was found, where, what is supported and
  what to do next.
* `PipelineError`: passes in an order that cannot work; raised when the pass manager is constructed.
* `InternalError` and its children: a defect of rnnqc (a broken graph, a pass that changed more than it declared).
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator, Sized
from dataclasses import asdict, dataclass
from typing import ClassVar

from rnnqc.codes import Code, Told, coded
from rnnqc.wording import worded

MEMORY = "the model"
FLOAT_MODEL, LOWERED_MODEL = "the float model", "the lowered model"
"""Names in messages for two models that do not come from files."""
LOWER_THE_FLOAT_MODEL = "lower the float model that it was made from"


def byte_count(count: int) -> str:
    """Formats a number of bytes for people."""
    return (
        f"{count} B" if count < 10_000 else f"{count / 1e3:.0f} kB" if count < 10_000_000 else f"{count / 1e6:.1f} MB"
    )


def explained(text: str, found: str = "", action: str = "") -> str:
    """Adds the cause and the resolution to a sentence, where they are known."""
    text += f" Found: {found}." if found else ""
    return text + (f" Resolution: {action}." if action else "")


def and_more(things: Sized) -> str:
    """Returns " and N more" to follow the first of several things; "" if it is the only one."""
    return f" and {len(things) - 1} more" if len(things) > 1 else ""


class RnnqcError(Exception):
    """Base of every error that rnnqc raises on purpose.

    Attributes:
        code: The code at the end of its message on the command line.
    """

    code: ClassVar[Code] = Code.REFUSED


class CompileError(RnnqcError):
    """The user's model, data or options cannot be handled.

    Args:
        message: What was found and where.
        supported: What would be accepted.
        action: What to do next.
    """

    def __init__(self, message: str, *, supported: str = "", action: str = "") -> None:
        self.message = message
        self.supported = supported
        self.action = action
        super().__init__(str(self))

    def __str__(self) -> str:
        text = self.message
        if self.supported:
            text += f" Supported: {self.supported}."
        if self.action:
            text += f" Resolution: {self.action}."
        return worded(text)

    def locate(self, source: str) -> None:
        """Prefixes the message with the model's name, unless it contains it."""
        if source != MEMORY and source not in self.message:
            self.message = f"{source}: {self.message}"
            self.args = (str(self),)


@contextlib.contextmanager
def located(source: str) -> Iterator[None]:
    """Adds the model's name to errors raised inside, except to errors about options."""
    try:
        yield
    except UsageError:
        raise
    except CompileError as error:
        error.locate(source)
        raise
    except MemoryError as error:
        raise CompileError(
            f"{source}: out of memory.", supported="models that fit into memory", action="check the declared shapes"
        ) from error
    except UnicodeDecodeError as error:
        text = "a name or text in the model is not UTF-8"
        raise CompileError(
            f"{source}: {text} ({error.reason}).", supported="UTF-8", action="export the model again"
        ) from error


class UsageError(CompileError):
    """Options that contradict each other or name something that does not exist."""

    code = Code.USAGE


class PipelineError(RnnqcError):
    """Passes in an order that cannot work."""

    code = Code.INTERNAL


class InternalError(RnnqcError):
    """A defect of rnnqc."""

    code = Code.CHECK


class StructureError(InternalError):
    """A graph that violates an invariant of the representation."""


class NumericsError(InternalError):
    """A pass changed values by more than it declares."""


class NotHandled(Exception):  # noqa: N818 - not an error: the site stays unchanged
    """A pass leaves a valid site unchanged; carries the reason, what was found, and what to do."""

    def __init__(self, reason: str, found: str, action: str = "") -> None:
        super().__init__(reason)
        self.reason, self.found, self.action = reason, found, action


class Outcome(enum.Enum):
    """The outcome of a pass at a site."""

    LOWERED = "lowered"
    FLOAT = "float"
    NOTE = "note"
    WARNING = "warning"


@dataclass(frozen=True)
class Remark:
    """One statement of a pass about one site.

    Attributes:
        pass_name: The name of the pass: the code of the remark.
        outcome: Whether the site was lowered, stays float, or only gets a note or a warning.
        node: Name of the node (or its first output, for a node without a name), with its path through subgraphs.
        op: Operator type; "" for other subjects, such as the data.
        reason: Why.
        found: What the pass found, e.g. "W is the output of node 'x' (MatMul)".
        action: What the user can do.
    """

    pass_name: str
    outcome: Outcome
    node: str
    op: str
    reason: str
    found: str = ""
    action: str = ""

    def as_dict(self) -> dict[str, str]:
        """Returns the remark as JSON-ready values."""
        return {**asdict(self), "outcome": self.outcome.value}

    def __str__(self) -> str:
        about = f'Operator "{self.op}" (node {self.node!r}) {self.outcome.value}' if self.op else self.node
        text = f"{about}: {self.reason}"
        return explained(text, self.found, self.action)

    @property
    def told(self) -> Told:
        """The remark as commands print it, with the name of the pass as its code."""
        return coded(self.pass_name, str(self))
