"""The rig's side of the nursery: consumers that it has started, and what has happened to each."""

from __future__ import annotations

import json
import os
import signal as signals
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from shop_example.demo.leash import Leash
from tests.faults.storm.life import Birth

ROOT = Path(__file__).parents[3]
#: Far beyond what anything here takes: who waits so long has found a hang.
PATIENCE_SECONDS = 90.0


class Hang(Exception):
    """A process did not do in time what it must; the text says which and what."""


@dataclass(slots=True)
class Life:
    """One consumer, or one run of another program.

    ``signal`` or ``code`` say how it ended.
    """

    number: int
    journal: Path
    log: Path
    pid: int | None = None
    stopped: bool = False
    signal: str | None = None
    code: int | None = None
    _news: threading.Condition = field(default_factory=threading.Condition)

    @property
    def ended(self) -> bool:
        """Whether it is no more."""
        return self.signal is not None or self.code is not None

    @property
    def killed(self) -> bool:
        """Whether it was a SIGKILL that ended it."""
        return self.signal == "SIGKILL"

    def wait(self, seconds: float = PATIENCE_SECONDS) -> Self:
        """Wait for its end."""
        self._wait(lambda: self.ended, seconds, "end")
        return self

    def wait_for_birth(self) -> int:
        """Wait until it lives; returns its process id."""
        self._wait(lambda: self.pid is not None, PATIENCE_SECONDS, "begin")
        assert self.pid is not None
        return self.pid

    def wait_at_rest(self, seconds: float = PATIENCE_SECONDS) -> Self:
        """Wait until it is stopped, or at its end."""
        self._wait(lambda: self.ended or self.stopped, seconds, "stop or end")
        return self

    def ends_within(self, seconds: float) -> bool:
        """Wait for its end, so long and no longer."""
        with self._news:
            return self._news.wait_for(lambda: self.ended, seconds)

    def send(self, number: signals.Signals) -> bool:
        """Send it a signal; False if it is no more."""
        pid = self.wait_for_birth()
        if self.ended:
            return False
        os.kill(pid, number)
        if number is signals.SIGCONT:
            self.stopped = False
        return True

    def hear(self, news: Mapping[str, Any]) -> None:
        """Take in what the nursery says of it."""
        with self._news:
            self.pid = news.get("born", self.pid)
            self.stopped = news.get("stopped", self.stopped)
            self.signal = news.get("signal")
            self.code = news.get("code")
            self._news.notify_all()

    def _wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        with self._news:
            if not self._news.wait_for(condition, seconds):
                raise Hang(f"process {self.number} (pid {self.pid}) did not {what} in {seconds} s")


class Nursery:
    """Starts consumers quickly: ``with Nursery(directory, leash) as nursery``."""

    def __init__(self, directory: Path, leash: Leash) -> None:
        self._lives: dict[int, Life] = {}
        self._lock = threading.Lock()
        self._count = 0
        with (directory / "nursery.log").open("ab") as log:
            self._process = self._start(leash, log)
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def consumer(self, directory: Path, settings: Mapping[str, str], **how: Any) -> Life:
        """Start one; ``how``: see ``life.Birth``."""
        life = self._new(directory)
        birth = Birth(str(life.journal), str(life.log), dict(settings), **how)
        self._order(life, birth=asdict(birth))
        return life

    def program(
        self,
        directory: Path,
        name: str,
        words: Sequence[str],
        output: Path,
        settings: Mapping[str, str] | None = None,
    ) -> Life:
        """Run ``outbox``, ``mail-service`` or ``producer``, which write to this file."""
        life = self._new(directory)
        given = {"words": list(words), "settings": dict(settings or {}), "output": str(output)}
        self._order(life, program=name, **given)
        return life

    def close(self) -> None:
        """End it, and with it all that it has started."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self, leash: Leash, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """As ``Leash.start`` does, with a pipe to it."""
        return subprocess.Popen(
            [sys.executable, "-m", "tests.faults.storm.nursery"],
            cwd=ROOT,
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            process_group=leash._guard.pid,
        )

    def _new(self, directory: Path) -> Life:
        with self._lock:
            self._count += 1
            name = directory / f"life-{self._count}"
            life = Life(self._count, name.with_suffix(".journal"), name.with_suffix(".log"))
            self._lives[life.number] = life
        return life

    def _order(self, life: Life, **order: Any) -> None:
        line = json.dumps({"number": life.number, **order}).encode() + b"\n"
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            news = json.loads(line)
            life = self._lives[news["number"]]
            life.hear(news)
            if life.ended:
                del self._lives[life.number]


def clean_environment() -> dict[str, str]:
    """Ours, without settings that would change what a consumer does."""
    ours = ("OUTBOX_", "EMAIL_", "MAIL_SERVICE_", "PG")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}
