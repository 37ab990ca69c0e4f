"""Creates the environment for the Makefile's targets; needs only the standard library.

Before any download, reports in one sentence what the machine lacks. An environment that is up to date with
pyproject.toml and the C++ sources stays as it is.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

ROOT = Path(__file__).resolve().parent.parent
COMPILERS = ("c++", "g++", "clang++")


def missing() -> str:
    """Returns what the machine lacks and what to do, or an empty string."""
    if sys.version_info < (3, 10):  # noqa: UP036 - this file meets interpreters that pip never checked
        version = ".".join(map(str, sys.version_info[:3]))
        return f"Python 3.10 or newer is needed, this is {version}; name another: make PYTHON=/path/to/python3"
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return (
            f"{sys.executable} cannot make environments; install its module venv (Debian: apt-get install python3-venv)"
        )
    chosen = shlex.split(os.environ.get("CXX", ""))[:1]
    if not any(shutil.which(name) for name in chosen or COMPILERS):
        what = f"$CXX is {chosen[0]!r}, which is no command" if chosen else f"found none of {', '.join(COMPILERS)}"
        return f"a C++17 compiler is needed, {what}; install one (Debian: apt-get install g++) or set CXX"
    return ""


def fingerprint() -> str:
    """Returns a hash of everything that an installation depends on; Python sources are used in place."""
    folders = (ROOT / "runtime_ops", ROOT / "tests" / "runtime_ops" / "native")
    sources = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
    files = [ROOT / "pyproject.toml", *sources]
    digest = hashlib.sha256(str(ROOT).encode())
    for path in files:
        if path.suffix not in (".py", ".pyc"):
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Waits for other commands that install in this checkout: two would write into one folder of compiled files."""
    if fcntl is None:
        yield
        return
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build" / "installing.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("rnnqc: waiting for another command that installs in this checkout", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def pip(python: Path, *arguments: str) -> list[str]:
    """Returns the pip command for the environment; Python compiles the few modules that are imported on first use."""
    options = ["--disable-pip-version-check", "install", "--quiet", "--no-compile"]
    return [str(python), "-m", "pip", *options, *arguments]


def install(python: Path, *arguments: str) -> bool:
    """Runs pip in the environment; returns whether it succeeded."""
    return subprocess.run(pip(python, *arguments), cwd=ROOT, check=False).returncode == 0


def requirements(name: str) -> list[str]:
    """Returns a list of pyproject.toml: `dependencies`, or an extra. Python 3.10 has no parser for the file."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    match = re.search(rf"^{name} = (\[.*?\])$", text, re.MULTILINE | re.DOTALL)
    if match is None:
        sys.exit(f"rnnqc: pyproject.toml has no list '{name} = [...]'; restore it")
    return list(ast.literal_eval(match[1]))


def install_packages(python: Path, wanted: set[str]) -> bool:
    """Installs what the checkout needs; returns whether everything except torch and Brevitas is installed.

    Without those two, tests of exporters are skipped. torch comes first: other packages would install any version of
    it.
    """
    if "torch" in wanted:
        if not install(python, *requirements("torch")):
            print("rnnqc: torch could not be installed; tests that need it will be skipped", file=sys.stderr)
        elif not install(python, *requirements("brevitas")):
            print("rnnqc: brevitas could not be installed; tests that need it will be skipped", file=sys.stderr)
    return install(python, *requirements("dependencies"), *(requirements("dev") if "dev" in wanted else []))


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Make or update the environment of a checkout.")
    parser.add_argument("venv", type=Path, help="folder of the environment")
    parser.add_argument("--dev", action="store_true", help="with linters and test tools")
    parser.add_argument("--no-torch", action="store_true", help="with --dev: without torch")
    options = parser.parse_args()
    problem = missing()
    if problem:
        print(f"rnnqc: {problem}", file=sys.stderr)
        return 1
    wanted = {"torch", "dev"} if options.dev and not options.no_torch else {"dev"} if options.dev else set()
    with alone():
        return update(ROOT / options.venv, wanted)


def update(environment: Path, wanted: set[str]) -> int:
    """Makes or updates the environment, with the parts `wanted` and those that it has; returns the exit code."""
    stamp = environment / "rnnqc-installed"
    current, *have = stamp.read_text(encoding="utf-8").split() if stamp.is_file() else [""]
    if current == fingerprint() and wanted <= set(have):
        return 0
    print(f"rnnqc: installing into {environment}", flush=True)
    python = environment / "bin" / "python"
    if not python.exists() and subprocess.run([sys.executable, "-m", "venv", str(environment)], check=False).returncode:
        print(f"rnnqc: could not make the environment {environment}; see the message above", file=sys.stderr)
        return 1
    wanted |= set(have)
    if current == fingerprint():  # the checkout is installed, and another command may be using it
        complete = install_packages(python, wanted)
    else:  # compile the library while packages are downloaded
        with subprocess.Popen(pip(python, "--no-deps", "-e", "."), cwd=ROOT) as checkout:
            complete = install_packages(python, wanted)
        complete &= checkout.returncode == 0
    if not complete:
        print("rnnqc: the installation failed; see pip's message above", file=sys.stderr)
        return 1
    stamp.write_text("\n".join([fingerprint(), *sorted(wanted)]) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
