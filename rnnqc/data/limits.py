"""Limits of this machine."""

from __future__ import annotations

import os


def physical_memory() -> int | None:
    """Bytes of physical memory; None where the system does not say."""
    names = getattr(os, "sysconf_names", {})
    if not {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(names):
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
