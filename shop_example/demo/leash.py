"""Ends the demo's processes when the demo ends, however it ends.

They are in one process group, led by a guard that does nothing but read a pipe. When this process
closes the pipe or dies, ``kill -9`` included, the guard kills the group, itself with it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

_GUARD = "import os, signal, sys; sys.stdin.buffer.read(); os.killpg(0, signal.SIGKILL)"


class Leash:
    """Starts processes that don't outlive this one: ``with Leash() as leash: leash.start(...)``."""

    def __init__(self) -> None:
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD], stdin=subprocess.PIPE, process_group=0
        )

    def start(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        directory: Path,
        log: IO[bytes],
        stdout: IO[bytes] | int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process; what it says goes to the log, unless ``stdout`` is given."""
        return subprocess.Popen(
            command,
            env=environment,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log if stdout is None else stdout,
            stderr=log,
            process_group=self._guard.pid,
        )

    def close(self) -> None:
        """Kill what still runs."""
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        self._guard.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
