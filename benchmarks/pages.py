"""New pages of the file cache, which a virtual machine may have to ask its host for.

Where the host lends memory at its first touch, and takes back what has been free for some seconds,
a new page costs ten times as much as one that was used a moment ago. Whatever fills more and more
pages would seem to get slower once the memory at hand has run out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from tempfile import TemporaryFile
from typing import BinaryIO

from outbox import embedded
from outbox.clock import boot_seconds

#: What was free is taken back by then, but for some hundred megabytes.
_TAKEN_BACK_SECONDS = 30.0
_AT_HAND_MEGABYTES = 2048
_MEGABYTE = b"x" * 1024**2


@contextmanager
def all_new() -> Iterator[None]:
    """Use up the memory at hand, so that the first page which is filled meanwhile costs as much as
    the last.
    """
    time.sleep(_TAKEN_BACK_SECONDS)
    with _file() as ballast:
        _fill(ballast, _AT_HAND_MEGABYTES)
        # Its way to the disk is not the burden of what follows.
        os.fsync(ballast.fileno())
        yield


def rates(*, rounds: int, megabytes: int) -> list[float]:
    """Fill so many pages each round, and do nothing else: megabytes per second."""
    with _file() as file:
        return [_fill(file, megabytes) for _ in range(rounds)]


def _file() -> BinaryIO:
    # Beside the embedded server's files: the system's temporary ones may have a cache of their own.
    directory = embedded.default_directory()
    directory.mkdir(parents=True, exist_ok=True)
    return TemporaryFile(dir=directory)


def _fill(file: BinaryIO, megabytes: int) -> float:
    started = boot_seconds()
    file.writelines(repeat(_MEGABYTE, megabytes))
    file.flush()
    return megabytes / (boot_seconds() - started)
