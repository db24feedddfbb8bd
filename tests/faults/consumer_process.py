"""Processes that die on command: ``python -m tests.faults.consumer_process``.

Reads a JSON object a line and answers with one. ``{"settings": {...}, "acts": {POINT: SIGNAL}}``
forks a process that runs the shipped consumer as ``email-consumer run --drain`` does, with these
environment variables, and sends itself this signal at that point. Another ``subject`` is a
producer, a command, or the naive lines. Forking from here, where all is imported and nothing is
running, saves the half second that Python takes to start.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pkgutil import resolve_name
from typing import Any

from consumers.email import logs, start, topics, transport
from consumers.email.payloads import PayloadReader
from consumers.email.settings import EmailSettings
from outbox.errors import ConfigurationError
from shop_example.emails import emails
from tests.faults import naive, transactions
from tests.faults.orders import payload
from tests.faults.points import Points
from tests.hurry import WAITS

#: How long a provider may ask to be left alone; the mail-service's faults ask for a second.
PROVIDERS_WISHES = {
    "outbox.lane.PROBE_SECONDS_MAX": 0.1,
    "outbox.outcome.RETRY_AFTER_SECONDS_MAX": 0.1,
}
#: Far beyond what any of them needs, so that a hanging one is an error and not a wait.
TIMEOUT_SECONDS = 60.0


def main() -> None:
    """Serve until the input ends."""
    _warm_up()
    for line in sys.stdin:
        answer = _serve(json.loads(line))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _warm_up() -> None:
    """Do once what every process would do first: load, compile and read files."""
    with suppress(ImportError):
        importlib.import_module("uvloop")
    with suppress(ConfigurationError):
        EmailSettings.load()
    # What reads payloads is made anew for each topic, and each order here has one of its own.
    setattr(topics, "PayloadReader", cache(PayloadReader))  # noqa: B010 -- a class for mypy
    emails.render("email.order_confirmation", payload())
    transport.certificates()
    # A collection would write to every page that a fork shares.
    gc.freeze()


#: Where the points can be read that a stopped process has come to, by process id.
_stopped: dict[int, int] = {}


def _serve(order: dict[str, Any]) -> dict[str, Any]:
    if "resume" in order:
        pid, reader = order["resume"], _stopped.pop(order["resume"])
        os.kill(pid, signal.SIGCONT)
    else:
        pid, reader = _fork(order)
    answer = _wait(pid)
    if "stopped" in answer:
        _stopped[pid] = reader
        return answer
    with os.fdopen(reader) as seen:
        return answer | {"points": seen.read().split("\n")[:-1]}


def _fork(order: dict[str, Any]) -> tuple[int, int]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _live(order, writer)
    os.close(writer)
    return pid, reader


def _wait(pid: int) -> dict[str, Any]:
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return {"stopped": pid}
    if os.WIFSIGNALED(status):
        return {"signal": signal.Signals(os.WTERMSIG(status)).name}
    return {"code": os.WEXITSTATUS(status)}


def _live(order: dict[str, Any], seen: int) -> None:
    """The life of one process; it does not return."""
    code = 70
    try:
        os.environ.update(order["settings"])
        # Our own standard output is where the answers to orders go.
        output = os.open(order["output"] or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, sys.stdout.fileno())
        code = _subject(order, seen)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 -- whatever it is, this process must not live on as a copy
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _subject(order: dict[str, Any], seen: int) -> int:
    def arrive(point: str) -> None:
        os.write(seen, f"{point}\n".encode())
        if point in order["acts"]:
            os.kill(os.getpid(), signal.Signals[order["acts"][point]])

    match order.get("subject", "consumer"):
        case "naive":
            return naive.run(arrive)
        case "consumer":
            return _consumer(order, arrive)
        case subject:
            return transactions.SUBJECTS[subject](arrive, *order.get("arguments", []))


def _consumer(order: dict[str, Any], arrive: Callable[[str], None]) -> int:
    for name, value in {**WAITS, **PROVIDERS_WISHES}.items():
        place, _, attribute = name.rpartition(".")
        setattr(resolve_name(place), attribute, value)
    if order.get("loop") == "asyncio":
        # As where uvloop is not installed: its import fails.
        sys.modules["uvloop"] = None  # type: ignore[assignment]
    Points(
        arrive,
        os.environ["FAULTS_TOPICS"].split(","),
        ready=order.get("ready", 1),
        crashed=order.get("crashed", 0),
        paced=order.get("paced", False),
        stop_at=order.get("stop_at"),
    ).watch()
    logs.set_up(verbose=False)
    return start.run(start.Run(drain=True, timeout_seconds=TIMEOUT_SECONDS))


if __name__ == "__main__":
    main()
