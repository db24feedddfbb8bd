"""The demo's processes: a mail-service, and consumers that are killed and started again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

import httpx

import shop_example
from shop_example.demo import DemoFailed
from shop_example.demo.leash import Leash

CHECKOUT = Path(shop_example.__file__).parents[1]
STOP_SECONDS_MAX = 20.0
START_SECONDS_MAX = 60.0
POLL_SECONDS = 0.02
SHOW_SECONDS = 0.25

#: The provider misbehaves for a quarter of all requests. Those that look like another server's
#: success are rare: three in a row would make a consumer pause, as it should.
FAULTS = {
    "drop_after_accept": 0.07,
    "reset_after_accept": 0.03,
    "500_after": 0.02,
    "stall": 0.02,
    "slow_drip": 0.01,
    "garbage_200": 0.01,
    "truncated_200": 0.01,
    "drop_before": 0.02,
    "502_before": 0.02,
    "503_before": 0.02,
    "stall_before": 0.01,
    "429": 0.01,
}
LATENCY_MS = 50
RECORD = "mail-service.jsonl"

#: Everything is short, so that what takes minutes in earnest takes seconds here.
QUICK = {
    "OUTBOX_LEASE_SECONDS": "4",
    "OUTBOX_HEARTBEAT_SECONDS": "1",
    "OUTBOX_POLL_SECONDS": "0.2",
    "OUTBOX_BACKOFF_SECONDS": "0.2",
    "OUTBOX_BACKOFF_MAX_SECONDS": "2",
    # So many faults and kills may meet one order; none is to end dead or held for their number.
    "OUTBOX_MAX_ATTEMPTS": "100",
    "EMAIL_TIMEOUT_SECONDS": "1",
    "EMAIL_CONCURRENCY": "4",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where the processes of one part work: its folder, and what they find in their environment."""

    directory: Path
    leash: Leash
    environment: Mapping[str, str]

    def start(
        self, name: str, command: list[str], *, stdout: int | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process of ours, logging to ``NAME.log``."""
        with self.log(name).open("ab") as log:
            return self.leash.start(
                [sys.executable, *command],
                environment=self.environment,
                directory=self.directory,
                log=log,
                stdout=stdout,
            )

    def with_settings(self, settings: Mapping[str, str]) -> Place:
        """The same, with more in the environment."""
        return replace(self, environment={**self.environment, **settings})

    def log(self, name: str) -> Path:
        """Where a process of that name logs."""
        return self.directory / f"{name}.log"

    def failure(self, name: str, what: str) -> DemoFailed:
        """An error that ends with the last thing that the process said."""
        lines = self.log(name).read_text(errors="replace").strip().splitlines()
        last = f": {lines[-1]}" if lines else ""
        return DemoFailed(f"{name} {what}{last} (see {self.log(name)})")


def clean_environment() -> dict[str, str]:
    """Ours, without settings that would change the demo, and with the checkout importable."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OUTBOX_", "EMAIL_", "MAIL_SERVICE_"))
    }
    paths = [str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def consumer_settings(database_url: str, api_url: str, *, provider_keys: bool) -> dict[str, str]:
    """The settings of one part's consumers."""
    memory = {} if provider_keys else {"EMAIL_KEY_WINDOW_SECONDS": "0", "EMAIL_UNKNOWN": "hold"}
    return {
        "OUTBOX_DATABASE_URL": database_url,
        "EMAIL_APP": "shop_example.emails:emails",
        "EMAIL_PROVIDER": "resend",
        "EMAIL_API_URL": api_url,
        "EMAIL_API_KEY": "demo",
        "EMAIL_FROM": "The example shop <shop@example.com>",
        **QUICK,
        **memory,
    }


class MailService:
    """The provider: a mail-service in a process of its own, with a record of its own."""

    def __init__(self, place: Place, *, provider_keys: bool, seed: int) -> None:
        self.record = place.directory / RECORD
        faults = ",".join(f"{name}={rate}" for name, rate in FAULTS.items())
        options = ["--port", "0", "--record", str(self.record), "--json"]
        options += ["--seed", str(seed), "--latency-ms", str(LATENCY_MS), "--faults", faults]
        options += [] if provider_keys else ["--no-keys"]
        command = ["-m", "shop_example.mail_service", *options]
        self._process = place.start("mail-service", command, stdout=subprocess.PIPE)
        self._place = place
        self.url = self._ready(place)
        self._control = httpx.Client(base_url=f"{self.url}/_control", trust_env=False, timeout=10)

    def behave(self) -> None:
        """No faults from now on."""
        self._ask("PUT", "/faults", {"rates": {}})

    def count(self, what: str) -> int:
        """How many requests have come so far, or how many e-mails were accepted."""
        return int(self._ask("GET", "/state")[what])

    def stop(self) -> None:
        """Let it write its record to the end."""
        self._control.close()
        self._process.terminate()
        self._process.wait(STOP_SECONDS_MAX)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        try:
            answer = self._control.request(method, path, json=body).raise_for_status()
        except httpx.HTTPError as error:
            raise self._place.failure("mail-service", f"does not answer ({error})") from error
        return dict(answer.json())

    def _ready(self, place: Place) -> str:
        line = self._process.stdout.readline() if self._process.stdout is not None else b""
        if not line:
            raise place.failure("mail-service", "does not start")
        return str(json.loads(line)["url"])


@dataclass(slots=True)
class Consumer:
    """One consumer, which has had several processes by the end."""

    name: str
    place: Place
    _process: subprocess.Popen[bytes] | None = None
    _said: int = 0
    kills: list[float] = field(default_factory=list)

    def start(self) -> None:
        log = self.place.log(self.name)
        self._said = log.stat().st_size if log.exists() else 0
        self._process = self.place.start(self.name, ["-m", "consumers.email.command", "run"])

    def wait_until_up(self, stopping: Event) -> None:
        """Return once it has written its start line.

        Raises:
            DemoFailed: it ended instead, or said nothing.
        """
        deadline = time.monotonic() + START_SECONDS_MAX
        while self.place.log(self.name).stat().st_size == self._said:
            self._require_alive()
            if time.monotonic() > deadline:
                raise self.place.failure(self.name, "does not start")
            if stopping.wait(POLL_SECONDS):
                return

    def kill(self) -> None:
        """SIGKILL, and note the moment at which it was surely dead."""
        process = self._require_alive()
        process.kill()
        process.wait()
        self.kills.append(time.time())

    def stop(self) -> None:
        """SIGTERM; it finishes what it has begun.

        Raises:
            DemoFailed: it does not end, or not with success.
        """
        process = self._require_alive()
        process.terminate()
        try:
            code = process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise self.place.failure(self.name, "does not stop") from None
        if code != 0:
            raise self.place.failure(self.name, f"ended with exit code {code}")

    def _require_alive(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise self.place.failure(self.name, "ended by itself")
        return self._process


def drain(place: Place, seconds_max: float, meanwhile: Callable[[], None]) -> None:
    """Run a consumer until nothing is left to do, and do something else now and then.

    Raises:
        DemoFailed: something is left.
    """
    arguments = ["run", "--drain", "--timeout", f"{seconds_max:g}"]
    process = place.start("drain", ["-m", "consumers.email.command", *arguments])
    while process.poll() is None:
        meanwhile()
        time.sleep(SHOW_SECONDS)
    if process.returncode != 0:
        raise place.failure("drain", f"ended with exit code {process.returncode}")


def held_effects(place: Place) -> list[dict[str, object]]:
    """Ask ``outbox effects list --state held``."""
    call = "import sys; from outbox.commands import main; sys.exit(main())"
    arguments = ["effects", "list", "--state", "held", "--limit", "1000000", "--json"]
    process = place.start("outbox", ["-c", call, *arguments], stdout=subprocess.PIPE)
    answer, _ = process.communicate(timeout=START_SECONDS_MAX)
    if process.returncode != 0:
        raise place.failure("outbox", f"ended with exit code {process.returncode}")
    return [json.loads(line) for line in answer.splitlines()]
