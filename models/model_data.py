"""Arrays of the trained models' tasks, cut from data that ships with scikit-learn and with Python.

Every function returns ``{file name: {array name: array}}``. Calibration files follow the convention of
``rnnqc lower --calibration``: arrays are named as the model's inputs and their leading axis counts the feeds.
"""

from __future__ import annotations

import pydoc_data.topics
from collections import Counter

import numpy as np
import numpy.typing as npt

SEED = 1
HIDDEN = {"digits": 64, "pydoc": 112}
PYDOC_LAYERS = 2

Array = npt.NDArray[np.generic]
Arrays = dict[str, dict[str, Array]]


def digits() -> Arrays:
    """Handwritten digits as sequences of 8 rows of 8 pixels in 0 .. 1, split 3:1 into training and test images."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]

    bunch = load_digits()
    images = (bunch.images / 16.0).astype(np.float32)
    labels = bunch.target.astype(np.int64)
    x_train, x_test, label_train, label_test = train_test_split(
        images, labels, test_size=0.25, stratify=labels, random_state=SEED
    )
    return {
        "digits_train.npz": {"x": x_train, "label": label_train},
        "digits_test.npz": {"x": x_test, "label": label_test},
        "digits_calibration.npz": {"x": x_train[:256].reshape(8, 32, 8, 8)},
    }


def pydoc() -> Arrays:
    """Text of Python's reference topics as character codes; the last tenth is the test text.

    Paragraphs that several topics share are kept once, so that no test paragraph occurs in the training text.
    Characters seen fewer than 30 times become ``?``.
    """
    topics = pydoc_data.topics.topics
    paragraphs: dict[str, None] = {}
    for name in sorted(topics):
        paragraphs.update(dict.fromkeys(part.strip("\n") for part in topics[name].split("\n\n") if part.strip()))
    text = "\n\n".join(paragraphs)
    common = {character for character, count in Counter(text).items() if count >= 30} | {"?"}
    vocabulary = sorted(common)
    code_of = {character: code for code, character in enumerate(vocabulary)}
    unknown = code_of["?"]
    codes = np.array([code_of.get(character, unknown) for character in text], dtype=np.uint8)
    split = len(codes) * 9 // 10
    characters = np.array([ord(character) for character in vocabulary], dtype=np.int32)
    feeds, steps, batch = 4, 128, 8
    states = np.zeros((feeds, PYDOC_LAYERS, batch, HIDDEN["pydoc"]), np.float32)
    tokens = codes[: feeds * steps * batch].reshape(feeds, batch, steps).transpose(0, 2, 1).astype(np.int64)
    return {
        "pydoc_train.npz": {"codes": codes[:split], "vocabulary": characters},
        "pydoc_test.npz": {"codes": codes[split:], "vocabulary": characters},
        "pydoc_calibration.npz": {"tokens": tokens, "h0": states, "c0": states},
    }
