"""Unique file names for the cells and tensors of a dump."""

from __future__ import annotations


class FileNames:
    """File names, one for each key."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, ...], str] = {}
        self._taken: set[str] = set()

    def of(self, key: tuple[str, ...], wanted: str) -> str:
        """Returns the name for `key`: `wanted`, with a number added if another key has that name.

        Names differ in more than case, which some file systems ignore.
        """
        if key not in self._names:
            fresh, k = wanted, 1
            while fresh.casefold() in self._taken:
                k += 1
                fresh = f"{wanted}_{k}"
            self._taken.add(fresh.casefold())
            self._names[key] = fresh
        return self._names[key]
