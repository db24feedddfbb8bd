"""A small filesystem of the rig's own, in memory, which fills up on command."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from outbox import unprivileged

_BLOCK = b"\0" * 65_536


@dataclass(frozen=True, slots=True)
class Disk:
    """A filesystem of so many bytes at ``path``; whoever runs PostgreSQL may write to it."""

    path: Path
    bytes_max: int

    def mount(self) -> None:
        """Make it.

        Raises:
            OSError: this machine does not let us; the text says why.
        """
        self.path.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", f"size={self.bytes_max},mode=0711", "outbox-storm"]
        done = subprocess.run([*words, self.path], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            self.path.rmdir()
            raise OSError(done.stderr.strip() or f"mount ended with {done.returncode}")

    def room(self, name: str) -> Path:
        """A directory on it for PostgreSQL."""
        room = self.path / name
        unprivileged.make_private(room)
        return room

    def fill(self) -> None:
        """Take all that is free, and what becomes free meanwhile."""
        with self._ballast.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(_BLOCK)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def free(self) -> None:
        """Give it back."""
        self._ballast.unlink(missing_ok=True)

    def unmount(self) -> None:
        """Remove it, with all that is on it."""
        _unmount(self.path)
        self.path.rmdir()

    @property
    def _ballast(self) -> Path:
        return self.path / "ballast"


def why_not() -> str | None:
    """Why no such filesystem can be made on this machine; ``None`` where it can."""
    if shutil.which("mount") is None or shutil.which("umount") is None:
        return "no mount command"
    if not unprivileged.is_root():
        return "only root may mount a filesystem of limited size"
    probe = Disk(Path("/tmp") / f"outbox-storm-disk-{os.getpid()}", 1_000_000)  # noqa: S108
    try:
        probe.mount()
    except OSError as error:
        return str(error)
    probe.unmount()
    return None


def unmount_below(directory: Path) -> None:
    """Unmount what a run that was killed has left there."""
    with contextlib.suppress(FileNotFoundError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            mounted = Path(line.split(" ")[1])
            if mounted.is_relative_to(directory):
                _unmount(mounted)


def _unmount(path: Path) -> None:
    """At once, whoever still has a file there."""
    words = ["umount", "-l", str(path)]
    subprocess.run(words, capture_output=True, check=True)
