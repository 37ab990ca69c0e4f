"""The native library on an emulated arm64 processor: the tests of its kernels and of its operator, run there.

The kernels are compared with the scalar reference bit by bit, on buffers that end at a guard page. Compiling and
emulation take minutes: all of them are slow tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native import arm64

PROCESSORS = {
    arm64.MATRIX_PRODUCTS: "neoni8mm",
    arm64.DOT_PRODUCTS: "neondot",
    arm64.NO_DOT_PRODUCTS: "neon",
    "cortex-a72": "neon",
}
pytestmark = pytest.mark.slow
emulated = pytest.mark.skipif(arm64.NO_PROCESSOR is not None, reason=str(arm64.NO_PROCESSOR))


def run_tests(library: Path, file: str, *arguments: str) -> None:
    report = arm64.run(
        library,
        arm64.MATRIX_PRODUCTS,
        *("-m", "pytest", f"tests/runtime_ops/{file}", "-q", "-p", "no:cacheprovider", "--assert=plain", *arguments),
        RNNQC_EXPECT_ISAS="portable,neon,neondot,neoni8mm",
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",  # nothing is rewritten: on an emulated processor that takes seconds
    )
    assert " passed" in report
    assert " skipped" not in report


@pytest.mark.skipif(arm64.NO_COMPILER is not None, reason=str(arm64.NO_COMPILER))
def test_builds_without_warnings(arm64_library: Path) -> None:
    assert arm64_library.read_bytes()[:20].endswith(b"\xb7\x00")  # ELF's number of the architecture


@emulated
@pytest.mark.parametrize(("processor", "isa"), PROCESSORS.items())
def test_what_the_processor_has_is_used(processor: str, isa: str, arm64_library: Path) -> None:
    script = (
        "import ctypes, os\n"
        "library = ctypes.CDLL(os.environ['RNNQC_LIBRARY'])\n"
        "library.rnnqc_isa.restype = ctypes.c_char_p\n"
        "print(library.rnnqc_isa(None, ctypes.c_size_t(0)).decode())\n"
    )
    assert arm64.run(arm64_library, processor, "-c", script) == f"{isa}\n"


@emulated
@pytest.mark.parametrize("isa", ["neon", "portable"])
def test_kernels(isa: str, arm64_library: Path) -> None:
    """ "neon" stands for all instruction sets with this prefix."""
    run_tests(arm64_library, "kernels/test_kernels.py", "-k", f"{isa} or expected_instruction_sets or guard_pages_work")


@emulated
@pytest.mark.parametrize("isa", ["neon", "portable"])
def test_kernels_of_cells_with_a_hidden_state_only(isa: str, arm64_library: Path) -> None:
    run_tests(arm64_library, "kernels/test_hidden_kernels.py", "-k", isa)


@emulated
def test_operator(arm64_library: Path) -> None:
    # The emulated Python cannot start another one, as the tests of RNNQC_ISA want.
    run_tests(arm64_library, "operators/test_quant_lstm_cell.py", "-k", "not isa_override")


@emulated
def test_kernels_of_16_bit_codes(arm64_library: Path) -> None:
    run_tests(arm64_library, "kernels/test_wide_kernels.py", "-k", "neon or portable")


@emulated
def test_kernels_of_few_bits(arm64_library: Path) -> None:
    """Widths in memory, and columns of eight bits that stand apart."""
    run_tests(arm64_library, "kernels/test_few_bits_kernels.py", "-k", "neon")


@emulated
def test_gru_and_rnn(arm64_library: Path) -> None:
    run_tests(arm64_library, "operators/test_quant_gru_cell.py", "-k", "not every_instruction_set and not threads")


@emulated
def test_linear_layer(arm64_library: Path) -> None:
    run_tests(arm64_library, "operators/test_quant_linear.py", "-k", "sizes or beyond_the_arrays or special_values")


@emulated
def test_operator_on_grids(arm64_library: Path) -> None:
    selected = "sizes or ties or largest_sums or saturate or native_is_the_reference"
    run_tests(arm64_library, "fixed_point/test_grid.py", "-k", selected)
