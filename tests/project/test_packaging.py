"""The checkout's symlinks, the distributions' contents, and the Makefile's messages on machines that lack something."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import rnnqc
import rnnqc.passes
import rnnqc.runtime_ops
from tests.runs.commands import HANGS

ROOT = Path(__file__).resolve().parents[2]
SUBPACKAGES = ("passes", "runtime_ops")
MAKE = shutil.which("make")
SLOWLY_COMPILED = ("AVX512VNNI", "AVX512VBMI", "AMXINT8", "AVXVNNI")
HARDLY_OPTIMIZED = ["-Ccmake.build-type=None", *(f"-Ccmake.define.RNNQC_HAS_{isa}=OFF" for isa in SLOWLY_COMPILED)]


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "RNNQC_LIBRARY")}
    return subprocess.run(
        command, cwd=cwd, env=inherited | environment, capture_output=True, text=True, check=False, timeout=HANGS
    )


def build(kind: str, source: Path, folder: Path, *options: str) -> Path:
    """Build the sdist or the wheel of `source` into `folder`; returns the distribution."""
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", *options, "--outdir", folder, source]
    done = run(*command, cwd=folder, CXXFLAGS="-O1")
    assert done.returncode == 0, done.stdout + done.stderr
    (distribution,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return distribution


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def unpacked(sdist: Path) -> Path:
    """The unpacked sdist, outside of the checkout."""
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.2, Debian's, has no filters
    with tarfile.open(sdist) as archive:
        archive.extractall(sdist.parent / "unpacked", **safely)
    (source,) = (sdist.parent / "unpacked").iterdir()
    return source


COMPILED = "compiled"


@pytest.fixture(scope="module", params=["Python alone", pytest.param(COMPILED, marks=pytest.mark.slow)])
def wheel(request: pytest.FixtureRequest, unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From the unpacked sdist; the library hardly optimized, without the kernels that take longest to compile.

    The installation of the checkout, with which all tests run, has compiled the whole library.
    """
    options = HARDLY_OPTIMIZED if request.param == COMPILED else ["-Cwheel.cmake=false"]
    return build("wheel", unpacked, tmp_path_factory.mktemp("wheel"), *options)


def sources(pattern: str) -> set[str]:
    """Files of the checkout, without what the symlinks lead to."""
    found = (path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern) if path.is_file())
    return {name for name in found if not name.startswith(tuple(f"rnnqc/{link}/" for link in SUBPACKAGES))}


@pytest.mark.parametrize("name", SUBPACKAGES)
def test_symlinks_are_relative(name: str) -> None:
    link = ROOT / "rnnqc" / name
    if not link.is_symlink():
        pytest.skip("this checkout was made without symlinks")
    assert link.readlink() == Path("..") / name


def test_subpackages_are_the_top_level_folders() -> None:
    for module in (rnnqc.passes, rnnqc.runtime_ops):
        assert Path(str(module.__file__)).resolve() == ROOT / module.__name__.removeprefix("rnnqc.") / "__init__.py"


def test_version_is_stated_once() -> None:
    assert rnnqc.__version__ == metadata.version("rnnqc") == rnnqc.runtime_ops.__version__


def test_the_command_is_installed() -> None:
    (command,) = metadata.entry_points(group="console_scripts", name="rnnqc")
    assert command.value == "rnnqc.cli:main"
    assert callable(command.load())


@pytest.mark.slow
def test_sdist_has_every_source_once(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members}
    assert not [member.name for member in members if member.issym()]
    assert not [name for name in names if name.startswith(("rnnqc/passes", "rnnqc/runtime_ops", ".venv", "build/"))]
    for pattern in (
        "rnnqc/**/*.py",
        "rnnqc/**/*.toml",
        "passes/**/*.py",
        "runtime_ops/*.py",
        "runtime_ops/CMakeLists.txt",
        "runtime_ops/cmake/*",
        "runtime_ops/include/*",
        "runtime_ops/src/**/*",
    ):
        expected = sources(pattern)
        assert expected and expected <= names, pattern


@pytest.mark.few(1)
def test_wheel_has_python_and_the_library_but_no_cxx(wheel: Path, request: pytest.FixtureRequest) -> None:
    platform = "any" if COMPILED not in request.node.name else r"(?!any)\w+"
    assert re.fullmatch(rf"rnnqc-[\d.]+-py3-none-{platform}\.whl", wheel.name)
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"rnnqc", next(top for top in tops if top.endswith(".dist-info"))}
    assert not [
        name for name in names if name.endswith((".cc", ".h", ".inc", ".txt", ".cmake")) and name.startswith("rnnqc/")
    ]
    expected = sources("rnnqc/**/*.py") | sources("passes/**/*.py") | sources("rnnqc/recipes/builtin/*.toml")
    assert {re.sub("^passes/", "rnnqc/passes/", name) for name in expected} <= set(names)
    assert "rnnqc/py.typed" in names
    if COMPILED in request.node.name:
        assert "rnnqc/runtime_ops/librnnqc_ops.so" in names
    assert not [name for name in names if "librnnqc_ops_tests" in name]


def test_wheel_works_from_elsewhere(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    library = tmp_path / "site" / "rnnqc" / "runtime_ops" / rnnqc.runtime_ops.library_path().name
    if not library.exists():
        shutil.copy(rnnqc.runtime_ops.library_path(), library)
    # -S leaves out the .pth file of the editable installation, so that only the unpacked wheel can be found.
    path = os.pathsep.join([str(tmp_path / "site"), *(entry for entry in sys.path if entry.endswith("-packages"))])
    program = (
        "import sys, onnxruntime, rnnqc, rnnqc.passes, rnnqc.runtime_ops as ops\n"
        "ops.register(onnxruntime.SessionOptions())\n"
        "print(rnnqc.__file__, rnnqc.passes.__file__, ops.library_path(), sep='\\n')\n"
    )
    done = run(sys.executable, "-S", "-c", program, cwd=tmp_path, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert all(Path(line).is_relative_to(tmp_path / "site") for line in done.stdout.split())


@pytest.mark.skipif(MAKE is None, reason="make is not installed")
@pytest.mark.parametrize("target", ["demo", "test"])
def test_make_without_a_compiler_says_so_before_anything_else(tmp_path: Path, target: str) -> None:
    (tmp_path / "bin").mkdir()
    for tool in ("sh", "bash", "env"):
        (tmp_path / "bin" / tool).symlink_to(str(shutil.which(tool)))
    arguments = [f"PYTHON={sys.executable}", f"VENV={tmp_path / 'venv'}", target]
    done = run(str(MAKE), *arguments, cwd=ROOT, PATH=str(tmp_path / "bin"), CXX="")
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert len(said) == 1 and "C++17 compiler" in said[0] and "apt-get install g++" in said[0]
    assert not (tmp_path / "venv").exists()


@pytest.mark.skipif(MAKE is None, reason="make is not installed")
def test_make_without_python_says_so(tmp_path: Path) -> None:
    done = run(str(MAKE), "PYTHON=no-such-python", f"VENV={tmp_path / 'venv'}", "demo", cwd=ROOT)
    assert done.returncode != 0
    assert "found no 'no-such-python'" in done.stderr


def test_a_compiler_that_does_not_exist_is_named(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "scripts" / "bootstrap.py", tmp_path / "venv"]
    done = run(*command, cwd=tmp_path, CXX="no-such-compiler -m64")
    assert done.returncode == 1
    assert "'no-such-compiler'" in done.stderr and not (tmp_path / "venv").exists()


def test_a_python_without_ensurepip_is_told_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "ensurepip.py").write_text("raise ImportError('left out by the distribution')\n")
    command = [sys.executable, ROOT / "scripts" / "bootstrap.py", tmp_path / "venv"]
    done = run(*command, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1 and "apt-get install python3-venv" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_two_commands_that_install_take_turns(tmp_path: Path) -> None:
    """The second waits, and then finds done what the first has done; two builds in one folder spoil each other."""
    fcntl = pytest.importorskip("fcntl", reason="Windows has no make")
    for name in ("scripts", "build", "venv", "runtime_ops"):
        (tmp_path / name).mkdir()
    program = shutil.copy(ROOT / "scripts" / "bootstrap.py", tmp_path / "scripts")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    compiler = {**os.environ, "CXX": sys.executable}
    with (tmp_path / "build" / "installing.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = subprocess.Popen([sys.executable, program, "venv"], stdout=subprocess.PIPE, text=True, env=compiler)
        assert second.stdout is not None
        assert second.stdout.readline() == "rnnqc: waiting for another command that installs in this checkout\n"
        (tmp_path / "venv" / "rnnqc-installed").write_text(runpy.run_path(str(program))["fingerprint"]())
    said, _ = second.communicate(timeout=HANGS)
    assert (second.returncode, said) == (0, "")


def test_wheels_are_built_in_folders_of_their_own() -> None:
    """Two `pip install .` at once had one folder: compilers were not found, or kernels silently left out."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    settings = tomllib.loads(text)["tool"]["scikit-build"]
    assert "build-dir" not in settings
    (editable,) = (o for o in settings["overrides"] if "build-dir" in o)
    assert editable["if"] == {"state": "editable"}


@pytest.mark.slow
def test_a_build_without_a_compiler_says_what_to_do(unpacked: Path, tmp_path: Path) -> None:
    tools = {name: shutil.which(name) for name in ("sh", "cmake", "ninja")}
    if None in tools.values():
        pytest.skip("cmake and ninja, which pip fetches for a build, are not installed")
    (tmp_path / "bin").mkdir()
    for name, path in tools.items():
        (tmp_path / "bin" / name).symlink_to(str(path))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, unpacked]
    done = run(*command, cwd=tmp_path, PATH=str(tmp_path / "bin"), CXX="")
    assert done.returncode != 0
    said = " ".join((done.stdout + done.stderr).split())
    assert "Install a C++17 compiler" in said and "pip install . -Cwheel.cmake=false" in said


RUNTIME_NEEDS = ("onnxruntime", "numpy", "numpy.libs")


def test_the_runtime_package_needs_onnxruntime_alone(tmp_path: Path) -> None:
    """A lowered model in a Python that has neither the compiler nor onnx."""
    assert (ROOT / "runtime_ops" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    package = tmp_path / "site" / "rnnqc_runtime"
    package.mkdir(parents=True)
    shutil.copy(ROOT / "runtime_ops" / "__init__.py", package)
    shutil.copy(rnnqc.runtime_ops.library_path(), package)
    for name in RUNTIME_NEEDS:
        found = [Path(entry) / name for entry in sys.path if (Path(entry) / name).is_dir()]
        if found:  # wheels of numpy alone have libraries beside it
            (package.parent / name).symlink_to(found[0])
    rnnqc.lower(ROOT / "models" / "digits_lstm.onnx", strict=True).save(tmp_path / "lowered.onnx")
    program = (
        "import sys, numpy, onnxruntime, rnnqc_runtime\n"
        "feeds = dict(numpy.load(sys.argv[2]))\n"
        "bits = []\n"
        "for native in (False, True):\n"
        "    options = onnxruntime.SessionOptions()\n"
        "    native and rnnqc_runtime.register(options)\n"
        "    bits.append(onnxruntime.InferenceSession(sys.argv[1], options).run(None, feeds)[0].tobytes())\n"
        "    options.log_severity_level = 4\n"
        "print(bits[0] == bits[1], rnnqc_runtime.isa(), 'onnx' in sys.modules or 'rnnqc' in sys.modules)\n"
    )
    rng = np.random.default_rng(0)
    session = rnnqc.session(tmp_path / "lowered.onnx")
    shapes = {i.name: [d if isinstance(d, int) else 3 for d in i.shape] for i in session.get_inputs()}
    np.savez(tmp_path / "feeds.npz", **{n: rng.normal(0, 1, s).astype(np.float32) for n, s in shapes.items()})
    arguments = [sys.executable, "-S", "-c", program, tmp_path / "lowered.onnx", tmp_path / "feeds.npz"]
    done = run(*arguments, cwd=tmp_path, PYTHONPATH=str(package.parent))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", rnnqc.runtime_ops.isa(), "False"]


@pytest.mark.slow
def test_the_runtime_wheel(tmp_path: Path) -> None:
    wheel = build("wheel", ROOT / "runtime_ops", tmp_path, *HARDLY_OPTIMIZED)
    assert re.fullmatch(rf"rnnqc_runtime-{re.escape(rnnqc.__version__)}-py3-none-\w+\.whl", wheel.name)
    names = {name.partition("/")[::2] for name in zipfile.ZipFile(wheel).namelist()}
    assert {rest for top, rest in names if top == "rnnqc_runtime"} == {"__init__.py", "librnnqc_ops.so"}
    assert {"METADATA", "licenses/LICENSE"} <= {rest for top, rest in names if top.endswith(".dist-info")}
