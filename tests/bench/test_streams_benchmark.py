"""benchmarks/streams.py measures what the names of its ways say. No test depends on measured times.

What these would catch: states that do not go on, or go into another stream; a ratio the wrong way round.
"""

from __future__ import annotations

import numpy as np
import pytest
import streams

import rnnqc


@pytest.mark.parametrize("way", [streams.OWN, streams.JOINED])
def test_streams_go_on(way: str) -> None:
    """Each stream has the bits that it has alone."""
    model, state = streams.streaming_layer("5x9")
    session = rnnqc.session(rnnqc.lower(model).proto)
    groups = [rows for group in streams.shared_out(session, state, way, 4, 2) for rows in group]
    assert [g.buffers["h0"][0].shape for g in groups] == [(1, 1, 9)] * 4 if way == streams.OWN else [(1, 2, 9)] * 2
    for rows in groups:
        frame = rows.buffers["X"][0]
        assert frame.any()
        for row in range(frame.shape[1]):
            h, c = np.zeros((2, 1, 1, 9), np.float32)
            made = []
            for _ in range(3):
                y, h, c = session.run(["Y", "Y_h", "Y_c"], {"X": frame[:, row : row + 1], "h0": h, "c0": c})
                made.append(y)
            if row == 0:
                for y in made:
                    rows.step()
                    np.testing.assert_array_equal(rows.result()[:, :, :1], y)
            np.testing.assert_array_equal(rows.result()[:, :, row : row + 1], made[-1])


def test_rows() -> None:
    model, state = streams.streaming_layer("5x9")
    models = {streams.FLOAT: rnnqc.session(model), streams.INT8: rnnqc.session(rnnqc.lower(model).proto)}
    rows = streams.measure(models, state, streams=4, threads=2, rounds=1, frame_ms=8.0, seconds=1e-4)
    assert [(r["way"], r["model"]) for r in rows] == [
        (w, m) for w in (streams.OWN, streams.JOINED) for m in (streams.FLOAT, streams.INT8)
    ]
    for before, after in zip(rows[::2], rows[1::2], strict=True):
        assert (before["of float"], after["of float"]) == (1, before["tick us"] / after["tick us"])
        assert after["frames/s"] == pytest.approx(4e6 / after["tick us"])


def test_a_fixed_batch_has_no_rows() -> None:
    session = rnnqc.session(streams.Layer(1, 1, 5, 9, states=True).model())
    assert not streams.has_rows(session, {"h0": "Y_h", "c0": "Y_c"})
