"""Runs commands in processes forked from one that has imported rnnqc, because imports take most of their time.

A process is limited, killed or ended by onnxruntime as any other is. What differs from `python -m rnnqc`: the imports
are done, and the hash of strings is that of the first process; tests of either start a real one
(`commands.in_subprocess`).
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COMMAND = "import sys\nfrom rnnqc.cli import main\nsys.exit(main())\n"
"""The program that is `python -m rnnqc`."""
LONGEST_REQUEST = 1 << 20


class ForkServer:
    """A process that forks one for every program."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = [sys.executable, __file__, str(other.fileno())]
        self._process = subprocess.Popen(arguments, pass_fds=[other.fileno()])
        other.close()

    def run(
        self, program: str, arguments: Sequence[str], limits: Mapping[int, Sequence[int]]
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program in the folder and the environment of this process.

        Args:
            program: Python.
            arguments: `sys.argv` behind the name of the program.
            limits: Of resources, by number.
        """
        request = {
            "program": program,
            "arguments": list(arguments),
            "limits": {str(k): list(v) for k, v in limits.items()},
            "folder": os.getcwd(),
            "environment": dict(os.environ),
        }
        ends = [os.pipe(), os.pipe()]
        texts = ["", ""]

        def read(k: int) -> None:
            with os.fdopen(ends[k][0], "rb") as pipe:
                texts[k] = pipe.read().decode(errors="replace")

        readers = [threading.Thread(target=read, args=(k,)) for k in range(2)]
        for reader in readers:
            reader.start()
        socket.send_fds(self._socket, [json.dumps(request).encode()], [ends[0][1], ends[1][1]])
        for _, end in ends:
            os.close(end)
        code = int(self._socket.recv(64))
        for reader in readers:
            reader.join()
        return subprocess.CompletedProcess(list(arguments), code, *texts)

    def close(self) -> None:
        """Ends the process."""
        self._socket.close()
        self._process.wait()


@functools.cache
def server() -> ForkServer:
    """The fork server of this process, started on first use."""
    made = ForkServer()
    atexit.register(made.close)
    return made


def _child(request: dict[str, Any], out: int, err: int) -> int:
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.stdout, sys.stderr = (os.fdopen(k, "w", encoding="utf-8") for k in (1, 2))
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["rnnqc", *request["arguments"]]
    for number, values in request["limits"].items():
        resource.setrlimit(int(number), tuple(values))
    try:
        exec(compile(request["program"], "program", "exec"), {"__name__": "__main__"})
    except SystemExit as stop:
        code = stop.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
        return code if isinstance(code, int) else int(code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _serve(connection: socket.socket) -> None:
    import rnnqc.commands.program  # noqa: F401 - what this process is for

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the process that started it
    while True:
        held, descriptors, _, _ = socket.recv_fds(connection, LONGEST_REQUEST, 2)
        if not held:
            return
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = _child(json.loads(held), *descriptors)
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)
        for descriptor in descriptors:
            os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).resolve().parent))  # modules of tests have names of others
    _serve(socket.socket(fileno=int(sys.argv[1])))
