"""Number formats besides the default ones, in form qcdq and in bytes; tests/laws has their equal bits.

What these would catch: weights that the forms round differently; more bytes than the format takes.
"""

from __future__ import annotations

import pytest

import rnnqc
from tests.generate.layers import RecurrentCase
from tests.laws.formats import TABLES
from tests.runs.lowered import STOCK, session
from tests.runs.sessions import plain_session, run, sqnr

CASE = RecurrentCase(T=6, B=3, I=70, H=65, initial_h=True, initial_c=True)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", TABLES)
def test_qcdq_form_is_close(name: str) -> None:
    """The same number formats, in standard quantizers: gates are exact there, and everything else is rounded alike."""
    feeds = CASE.feeds()
    qcdq, fused = (rnnqc.lower(CASE.model(), form=form, overrides=TABLES[name]).proto for form in ("qcdq", "fused"))
    assert sqnr(run(plain_session(qcdq), feeds)["Y"], run(session(fused, STOCK), feeds)["Y"]) > 35.0


def test_size() -> None:
    """An eighth of float; group multipliers add a 32nd of the packed weights for groups of 64."""
    case = RecurrentCase(I=256, H=256, bias=False)
    float_bytes = 4 * 512 * 1024
    names = (
        "int4",
        "int4, groups of 32",
        "int4 recurrence, groups of 64",
        "int3, some channels int8",
        "int6",
        "int5, groups of 32",
    )
    sizes = {n: rnnqc.lower(case.model(), overrides=TABLES[n]).report.entries[0].bytes for n in names}
    others = 3 * 4 * 1024
    assert sizes["int4"] - others == float_bytes // 8
    assert sizes["int4, groups of 32"] - others == float_bytes // 8 + 16 * 1024
    assert sizes["int4 recurrence, groups of 64"] - others == 256 * 1024 + 128 * 1024 + 4 * 1024
    assert sizes["int6"] - others == float_bytes * 3 // 16
    assert sizes["int5, groups of 32"] - others == float_bytes * 5 // 32 + 16 * 1024
    assert sizes["int3, some channels int8"] - others == float_bytes // 4
