"""Names of quantization points and of values.

What these would catch: two things of one name, names that other things change, names that depend on hash order; a
branch or a step that passes write into a name and that no reader of names knows.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnnqc.ir import safe_name
from rnnqc.passes.graph.point_names import (
    BEYOND,
    SIGNED,
    UNSIGNED,
    WITHIN,
    alias,
    branch_path,
    distinct_names,
    plain_name,
    step_path,
)


def names(*texts: str, taken: tuple[str, ...] = ()) -> list[str]:
    return list(distinct_names({k: (t, ("",)) for k, t in enumerate(texts)}, taken).values())


def test_numbers_follow_names_that_are_taken() -> None:
    assert names("a", "b c", "d") == ["a", "b_c", "d"]
    assert names("m 1", "m_1", "m:1") == ["m_1_2", "m_1", "m_1_3"]
    assert names("m 1", "m:1", "m_1_2") == ["m_1", "m_1_3", "m_1_2"], "what has a name of its own keeps it"
    assert names("m 1", taken=("m_1", "m_1_2")) == ["m_1_3"]


def test_names_differ_with_what_stands_behind_them() -> None:
    made = distinct_names({1: ("a", (".value", ".1.value")), 2: ("a.1", (".value",)), 3: ("a", (".weight",))})
    assert made == {1: "a", 2: "a.1_2", 3: "a"}


@given(st.lists(st.text("a_1 :.2", min_size=1, max_size=5), max_size=8))
def test_no_two_are_the_same(texts: list[str]) -> None:
    made = names(*texts)
    assert len(set(made)) == len(texts)
    usual = [safe_name(t) for t in texts]
    assert all(name == own for name, own in zip(made, usual, strict=True) if usual.count(own) == 1)
    assert all(name == safe_name(name) for name in made)


@given(
    st.sampled_from(["", "a/b.forward", "step_1.reverse"]),
    st.lists(st.sampled_from([SIGNED, UNSIGNED, WITHIN, BEYOND]), max_size=2),
    st.none() | st.integers(0, 20000),
    st.sampled_from(["hidden", "cell_state.kept", "input_gate.acc.codes", "x.projection.step"]),
    st.sampled_from(["", "_2", "_13"]),
)
def test_what_passes_add_to_names_is_read_again(
    cell: str, branches: list[str], step: int | None, value: str, number: str
) -> None:
    path = cell
    for branch in branches:
        path = branch_path(path, branch)
    if step is not None:
        path = step_path(path, step)
    name = f"{path}/{value}{number}" if path else f"{value}{number}"
    assert plain_name(name, cell) == value
    assert alias(f"/{name}")[1] == (step or 0)


def test_a_branch_that_no_reader_knows() -> None:
    with pytest.raises(ValueError, match="int4"):
        branch_path("cell", "int4")
