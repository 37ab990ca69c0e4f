"""Names of files for the cells and tensors of a dump: no two alike."""

from __future__ import annotations


class FileNames:
    """Names of files, each for one key."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, ...], str] = {}
        self._taken: set[str] = set()

    def of(self, key: tuple[str, ...], wanted: str) -> str:
        """The name for `key`: when the key comes first `wanted`, with a number if another key has that name.

        File systems may not tell capitals from small letters, so names differ in more than that.
        """
        if key not in self._names:
            fresh, k = wanted, 1
            while fresh.casefold() in self._taken:
                k += 1
                fresh = f"{wanted}_{k}"
            self._taken.add(fresh.casefold())
            self._names[key] = fresh
        return self._names[key]
