"""The record's writer: appends lines and says when they are on disk, many in one sync.

All lines that wait go out in one write and one fdatasync, in a thread, so that the event loop
never waits for the disk and the cost of a sync is shared by every request that waits for it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shop_example.mail_service.record import RecordError

# macOS has no fdatasync.
_sync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)

_TAIL_CHUNK_BYTES = 65_536


class Journal:
    """An open record, held by this process alone.

    Raises RecordError when the file can't be opened or another process writes to it. A torn last
    line, which no answer was ever based on, is cut off.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failure: RecordError | None = None
        self._descriptor = _open_alone(path)
        self.size = _cut_torn_line(self._descriptor)
        self._lines: list[bytes] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._writing: asyncio.Future[None] | None = None
        self._scheduled = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="record")

    def append(self, line: bytes) -> int:
        """Queues a line for the next write; returns the offset that it will have in the file."""
        offset = self.size
        self.size += len(line)
        self._lines.append(line)
        if not self._scheduled and self._writing is None:
            self._scheduled = True
            # At the end of this turn of the loop, so that its other requests ride along.
            asyncio.get_running_loop().call_soon(self._write)
        return offset

    async def synced(self) -> None:
        """Returns once all that was appended is on disk; raises RecordError when it can't be."""
        if self.failure is not None:
            raise self.failure
        if not self._lines and self._writing is None:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if not self._lines:
            self._lines.append(b"")
        await waiter

    def line_at(self, offset: int) -> bytes:
        """The synced line that begins at ``offset``."""
        line = b""
        while b"\n" not in line:
            chunk = os.pread(self._descriptor, _TAIL_CHUNK_BYTES, offset + len(line))
            if not chunk:
                raise RecordError(f"{self.path}: no line at offset {offset}")
            line += chunk
        return line.partition(b"\n")[0]

    async def close(self) -> None:
        """Writes what is queued, then lets go of the file."""
        try:
            if self.failure is None:
                await self.synced()
        finally:
            self.release()

    def release(self) -> None:
        """Lets go of the file, whatever is queued."""
        self._thread.shutdown(wait=True)
        os.close(self._descriptor)

    def _write(self) -> None:
        self._scheduled = False
        if not self._lines or self._failed():
            return
        lines, self._lines = self._lines, []
        waiters, self._waiters = self._waiters, []
        self._writing = asyncio.get_running_loop().run_in_executor(
            self._thread, _write_and_sync, self._descriptor, b"".join(lines)
        )
        self._writing.add_done_callback(lambda written: self._written(written, waiters))

    def _written(self, written: asyncio.Future[None], waiters: list[asyncio.Future[None]]) -> None:
        self._writing = None
        error = written.exception()
        if error is not None:
            self.failure = RecordError(f"can't write the record {self.path}: {error}")
        for waiter in waiters:
            _wake(waiter, self.failure)
        self._write()

    def _failed(self) -> bool:
        """After a failed write nothing more is written: the file's end is not known any more."""
        if self.failure is None:
            return False
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _wake(waiter, self.failure)
        return True


def _wake(waiter: asyncio.Future[None], failure: RecordError | None) -> None:
    if waiter.done():
        return
    if failure is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(failure)


def _open_alone(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RecordError(
            f"can't open the record {path}: {error.strerror}; give another file with --record"
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RecordError(f"{path} is no regular file; give another one with --record")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise RecordError(
            f"another mail-service writes to {path}; stop it or give another file with --record"
        ) from error
    return descriptor


def _cut_torn_line(descriptor: int) -> int:
    """Cuts the file after its last newline; returns its size."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - _TAIL_CHUNK_BYTES)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    os.ftruncate(descriptor, end)
    _sync(descriptor)
    return end


def _write_and_sync(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    _sync(descriptor)
