"""Train the two trained models with torch and export them as its users do.

One thread, deterministic algorithms and fixed seeds: two runs on one machine write the same weights. Another machine
or another torch release may round differently, which is why the committed files are compared by their sha256.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import torch
from model_data import HIDDEN, PYDOC_LAYERS, SEED
from torch import nn

OPSET = 17


class DigitsClassifier(nn.Module):
    """Rows of an image -> LSTM -> the last hidden state -> ten logits."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, HIDDEN["digits"], batch_first=True)
        self.classifier = nn.Linear(HIDDEN["digits"], 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images ``[batch,8,8]`` -> logits ``[batch,10]``."""
        hidden, _ = self.lstm(x)
        logits: torch.Tensor = self.classifier(hidden[:, -1])
        return logits


class CharacterModel(nn.Module):
    """Character codes and states -> embedding -> stacked LSTM -> logits over the tied embedding, and the new states."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        size = HIDDEN["pydoc"]
        self.embedding = nn.Embedding(characters, size)
        self.lstm = nn.LSTM(size, size, PYDOC_LAYERS)
        self.output = nn.Linear(size, characters)
        self.output.weight = self.embedding.weight
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)

    def forward(
        self, tokens: torch.Tensor, h0: torch.Tensor, c0: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Codes ``[time,batch]``, states ``[layers,batch,hidden]`` -> logits ``[time,batch,characters]``, states."""
        hidden, (hn, cn) = self.lstm(self.embedding(tokens), (h0, c0))
        return self.output(hidden), hn, cn


def train(name: str, folder: Path) -> None:
    """Train one model from the arrays in ``folder`` and write ``<name>_lstm.onnx`` there.

    Args:
        name: ``"digits"`` or ``"pydoc"``.
        folder: holds ``<name>_train.npz``; receives the model.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    with np.load(folder / f"{name}_train.npz") as arrays:
        data = {key: torch.from_numpy(arrays[key]) for key in arrays.files}
    {"digits": _train_digits, "pydoc": _train_pydoc}[name](data, folder / f"{name}_lstm.onnx")


def _train_digits(data: dict[str, torch.Tensor], path: Path) -> None:
    x, label = data["x"], data["label"]
    model = DigitsClassifier()
    epochs, batch = 100, 32
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(x)), batch):
            noisy = x[rows] + 0.1 * torch.randn_like(x[rows])
            loss = nn.functional.cross_entropy(model(noisy), label[rows], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        schedule.step()
    _export(model, (x[:2],), path, ["x"], ["logits"], {"x": {0: "batch"}, "logits": {0: "batch"}})


def _train_pydoc(data: dict[str, torch.Tensor], path: Path) -> None:
    batch, steps, epochs = 32, 64, 14
    codes = data["codes"].long()
    columns = codes[: len(codes) // batch * batch].reshape(batch, -1).T.contiguous()
    model = CharacterModel(len(data["vocabulary"]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 6e-3, total_steps=epochs * math.ceil((len(columns) - 1) / steps), pct_start=0.15
    )
    zeros = torch.zeros(PYDOC_LAYERS, batch, HIDDEN["pydoc"])
    for epoch in range(epochs):
        h, c, total = zeros, zeros, 0.0
        for start in range(0, len(columns) - 1, steps):
            stop = min(start + steps, len(columns) - 1)
            logits, h, c = model(columns[start:stop], h.detach(), c.detach())
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), columns[start + 1 : stop + 1].flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item() * (stop - start)
        bits = total / (len(columns) - 1) / math.log(2)
        print(f"pydoc: epoch {epoch + 1} of {epochs}, {bits:.3f} bits per character in training", flush=True)
    state = {1: "batch"}
    axes = {"tokens": {0: "time", 1: "batch"}, "h0": state, "c0": state}
    axes |= {"logits": axes["tokens"], "hn": state, "cn": state}
    example = (columns[:5, :2], zeros[:, :2], zeros[:, :2])
    _export(model, example, path, ["tokens", "h0", "c0"], ["logits", "hn", "cn"], axes)


def _export(
    model: nn.Module,
    example: tuple[torch.Tensor, ...],
    path: Path,
    inputs: list[str],
    outputs: list[str],
    axes: dict[str, dict[int, str]],
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.eval(),
            example,
            path,
            dynamo=False,
            opset_version=OPSET,
            input_names=inputs,
            output_names=outputs,
            dynamic_axes=axes,
        )
