"""Calibrates over several processes or machines: distributes pieces in chunks, and merges their observers in order."""

from __future__ import annotations

import hashlib
import pickle
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rnnqc.calibration.observation import Observers, Runner, Task, merge
from rnnqc.data.streaming import Piece
from rnnqc.errors import CompileError, UsageError

LONGEST, LARGEST = 256, 2**25
"""Pieces, and approximate bytes of observations, that are reduced together, whatever the number of processes."""
ADDRESS = re.compile(r"(\w+://)?.+:\d+")
TIMEOUT = 10
"""Seconds to wait for a scheduler."""
Chunk = list[Piece]
Progress = Callable[[int], None]


def reduced(
    task: Task, pieces: Iterable[Piece], processes: int, scheduler: str | None, progress: Progress | None
) -> Observers:
    """Returns the merged observers of all pieces.

    Args:
        task: What to observe.
        pieces: The data, taken when needed.
        processes: How many to use on this machine.
        scheduler: Address of a dask scheduler, or None.
        progress: Called with the number of samples done so far.

    Raises:
        CompileError: A piece cannot be run, or processes or machines fail.
    """
    chunks = _chunks(task, pieces)
    total: Observers = {}
    if scheduler is not None:
        results = _merged(total, _on_machines(task, chunks, scheduler))
    elif processes > 1:
        results = _merged(total, _in_processes(task, chunks, processes))
    else:
        results = _here(total, task, chunks)
    done = 0
    for samples in results:
        done += samples
        if progress is not None:
            progress(done)
    return total


def _merged(total: Observers, results: Iterable[tuple[Observers, int]]) -> Iterator[int]:
    """Merges results into `total`, in order; yields the number of samples of each."""
    for observers, samples in results:
        merge(total, observers)
        yield samples


def _here(total: Observers, task: Task, chunks: Iterable[Chunk]) -> Iterator[int]:
    """Runs chunks in this process, without merging: their observers go on; yields the number of samples of each."""
    runner = Runner(task)
    for chunk in chunks:
        runner.run(chunk, total)
        yield sum(p.samples for p in chunk)


def _chunks(task: Task, pieces: Iterable[Piece]) -> Iterator[Chunk]:
    chunk: Chunk = []
    size = 0
    for piece in pieces:
        chunk.append(piece)
        size += sum(task.sizes(piece.feed))
        if len(chunk) == LONGEST or size >= LARGEST:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


_runners: dict[str, Runner] = {}


def _run_chunk(task: bytes, chunk: Chunk) -> Observers:
    """Runs one chunk in a worker, which keeps its sessions; returns the observers."""
    key = hashlib.sha256(task).hexdigest()
    if key not in _runners:
        _runners.clear()
        _runners[key] = Runner(pickle.loads(task))
    observers = _runners[key].run(chunk)
    for observer in observers.values():
        observer.settle()
    return observers


_task = b""


def _start_worker(task: bytes) -> None:
    global _task
    _task = task


def _run_here(chunk: Chunk) -> Observers:
    return _run_chunk(_task, chunk)


def _in_processes(task: Task, chunks: Iterable[Chunk], processes: int) -> Iterator[tuple[Observers, int]]:
    import multiprocessing
    from concurrent.futures import Future, ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    # onnxruntime's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, _start_worker, (pickle.dumps(task),))
    try:
        yield from _in_order(chunks, 2 * processes, lambda chunk: pool.submit(_run_here, chunk), Future.result)
    except BrokenProcessPool as error:
        raise CompileError(
            "A process of the calibration ended early.",
            supported="scripts that can be imported: their work stands below `if __name__ == '__main__':`",
            action="check the memory; use fewer processes",
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _in_order(
    chunks: Iterable[Chunk], most: int, submit: Callable[[Chunk], Any], result: Callable[[Any], Observers]
) -> Iterator[tuple[Observers, int]]:
    """Yields results in the order of the chunks, with at most `most` of them in progress."""
    waiting: deque[tuple[Any, int]] = deque()
    for chunk in chunks:
        waiting.append((submit(chunk), sum(p.samples for p in chunk)))
        if len(waiting) >= most:
            future, samples = waiting.popleft()
            yield result(future), samples
    while waiting:
        future, samples = waiting.popleft()
        yield result(future), samples


def _no_scheduler(address: str, reason: str) -> UsageError:
    return UsageError(
        f"no dask scheduler answers at {address!r} ({reason}).",
        supported="addresses such as tcp://host:8786",
        action="start `dask scheduler` and `dask worker`, and check the address",
    )


def _on_machines(task: Task, chunks: Iterable[Chunk], address: str) -> Iterator[tuple[Observers, int]]:
    try:
        import distributed
    except ImportError as error:
        raise UsageError(
            "dask.distributed is not installed.",
            supported="a scheduler with the extra [dist]",
            action="pip install dask distributed, or use --processes",
        ) from error
    if not ADDRESS.fullmatch(address):
        raise _no_scheduler(address, "no such address")
    try:
        client = distributed.Client(address, timeout=TIMEOUT, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise _no_scheduler(address, (str(error).splitlines() or [type(error).__name__])[0]) from error
    with client:
        workers = len(client.scheduler_info()["workers"])
        if not workers:
            raise UsageError(
                f"the dask scheduler at {address!r} has no workers.",
                supported="one worker at least",
                action=f"start one: dask worker {address}",
            )
        sent = client.scatter(pickle.dumps(task), broadcast=True)

        def submit(chunk: Chunk) -> Any:
            return client.submit(_run_chunk, sent, chunk, pure=False)

        try:
            yield from _in_order(chunks, 2 * workers, submit, lambda future: future.result())
        except ImportError as error:
            raise CompileError(
                f"the workers of the dask scheduler at {address!r} cannot import rnnqc ({error}).",
                supported="workers with the same version of rnnqc",
                action="install it there, or use --processes",
            ) from error
        except (distributed.KilledWorker, distributed.CancelledError, OSError) as error:
            raise CompileError(
                f"the workers of the dask scheduler at {address!r} fail ({type(error).__name__}).",
                supported="workers with the same version of rnnqc",
                action="look at their logs, or use --processes",
            ) from error
