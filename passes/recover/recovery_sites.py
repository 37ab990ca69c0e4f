"""Sites where passes recover recurrent nodes, and sites where they must not."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TypeVar

from rnnqc.errors import NotHandled

Sites = TypeVar("Sites", bound="RecoverySites")


class RecoverySites:
    """Base of the passes that recover layers.

    Attributes:
        sites: Paths of the nodes recovered in the last run.
        kept: Sites that must stay unchanged, each with the finding there.
    """

    def __init__(self) -> None:
        self.sites: list[str] = []
        self.kept: Mapping[str, str] = {}

    def keeping(self: Sites, kept: Mapping[str, str]) -> Sites:
        """Returns the same pass with sites to leave unchanged, and the findings to report there."""
        other = copy.copy(self)
        other.sites, other.kept = [], dict(kept)
        return other

    def check_kept(self, site: str) -> None:
        """Raises an error for a site that must stay unchanged.

        Raises:
            NotHandled: The site is in `kept`.
        """
        if site in self.kept:
            raise NotHandled("what was made of it does not compute the same.", self.kept[site])
