"""The native library once for every instruction set, all in one process."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import shutil
import tempfile
from pathlib import Path
from unittest import mock

from kernel_calls import library_of_tests


@functools.cache
def _folder() -> Path:
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@functools.cache
def library_for(isa: str) -> Path:
    """A copy of the library of the tests that uses this instruction set.

    A library chooses when it is first asked, and a process that loads a copy has another library.
    """
    library = library_of_tests()
    copy = _folder() / f"{isa}{library.suffix}"
    shutil.copyfile(library, copy)
    native = ctypes.CDLL(str(copy))
    native.rnnqc_isa.restype = ctypes.c_char_p
    with mock.patch.dict(os.environ, RNNQC_ISA=isa):
        assert native.rnnqc_isa(None, ctypes.c_size_t(0)) == isa.encode()
    return copy
