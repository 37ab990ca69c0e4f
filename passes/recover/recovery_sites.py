"""Where passes make recurrent nodes of what is written in other ways, and where they are told not to."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TypeVar

from rnnqc.passes.recover.steps.step_weights import NoNode

Sites = TypeVar("Sites", bound="RecoverySites")


class RecoverySites:
    """What a pass that recovers layers has besides.

    Attributes:
        sites: Where it has done so in its last run: paths of nodes.
        kept: Sites that stay as they are, with what was found there.
    """

    def __init__(self) -> None:
        self.sites: list[str] = []
        self.kept: Mapping[str, str] = {}

    def keeping(self: Sites, kept: Mapping[str, str]) -> Sites:
        """The same pass that leaves sites alone, and says what was found there."""
        other = copy.copy(self)
        other.sites, other.kept = [], dict(kept)
        return other

    def check_kept(self, site: str) -> None:
        """Leaves a site alone.

        Raises:
            NoNode: The site is to stay as it is.
        """
        if site in self.kept:
            raise NoNode("what was made of it does not compute the same.", self.kept[site])
