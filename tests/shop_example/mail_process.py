"""The mail-service as a process of its own, for tests that stop and kill it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 20


@dataclass(frozen=True)
class MailProcess:
    """A running mail-service."""

    process: subprocess.Popen[str]
    url: str
    record: Path

    def kill(self) -> None:
        """SIGKILL, and its end awaited."""
        self.process.kill()
        self.process.wait(TIMEOUT_SECONDS)


@contextlib.contextmanager
def mail_process(record: Path, *options: str) -> Iterator[MailProcess]:
    """Starts a mail-service on a free port; kills it at the end if it still runs."""
    with start("--port", "0", "--json", "--record", str(record), *options) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            yield MailProcess(process, ready["url"], Path(ready["record"]))
        finally:
            process.kill()


def start(*options: str, **environment: str) -> subprocess.Popen[str]:
    """Starts the command; its output is piped."""
    return subprocess.Popen(
        [sys.executable, "-m", "shop_example.mail_service", *options],
        cwd=ROOT,
        env=environment or None,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
