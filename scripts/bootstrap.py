"""Make the environment that the Makefile's targets run in; only the standard library is needed.

What is missing on the machine is said in one sentence before anything is downloaded. An environment that is up to date
with pyproject.toml and the C++ sources is left alone.
"""

import argparse
import ast
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPILERS = ("c++", "g++", "clang++")


def missing() -> str:
    """What the machine lacks and what to do, or an empty string."""
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
    """Hash of all that an installation depends on; Python sources are used in place."""
    folders = (ROOT / "runtime_ops", ROOT / "tests" / "runtime_ops" / "native")
    sources = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
    files = [ROOT / "pyproject.toml", *sources]
    digest = hashlib.sha256(str(ROOT).encode())
    for path in files:
        if path.suffix not in (".py", ".pyc"):
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def pip(python: Path, *arguments: str) -> int:
    """Run pip in the environment and return its exit code; Python compiles what it imports, which is little of it."""
    options = ["--disable-pip-version-check", "install", "--quiet", "--no-compile"]
    command = [str(python), "-m", "pip", *options, *arguments]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def install_torch(python: Path) -> bool:
    """Install exactly the torch of pyproject.toml; whether that worked.

    Without it the tests of its exporters are skipped.
    """
    match = re.search(r'"(torch==[^"]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if match is None:
        sys.exit("rnnqc: pyproject.toml names no torch==VERSION; restore its extra 'torch'")
    if pip(python, match[1]):
        print(f"rnnqc: {match[1]} could not be installed; tests that need it will be skipped", file=sys.stderr)
        return False
    return True


def install_brevitas(python: Path) -> None:
    """Install the packages of the extra 'brevitas', which need torch; without them their tests are skipped."""
    match = re.search(r"^brevitas = (\[.*\])$", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        sys.exit("rnnqc: pyproject.toml has no line 'brevitas = [...]'; restore that extra")
    if pip(python, *ast.literal_eval(match[1])):
        print("rnnqc: brevitas could not be installed; tests that need it will be skipped", file=sys.stderr)


def main() -> int:
    """Run the command line; returns the exit code."""
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
    environment = ROOT / options.venv
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
    if "torch" in wanted and install_torch(python):
        install_brevitas(python)
    if pip(python, "-e", ".[dev]" if "dev" in wanted else "."):
        print("rnnqc: the installation failed; see pip's message above", file=sys.stderr)
        return 1
    stamp.write_text("\n".join([fingerprint(), *sorted(wanted)]) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
