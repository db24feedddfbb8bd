"""The life of one consumer, in its own process: the shipped code, watched, struck on command.

It keeps a journal for the rig, a line each, ``SECONDS SIGN WORDS``: which orders it is at work on,
so that a fault can be counted for those that it met, and no other. The time is the system's own,
whatever wall clock this process is made to believe in.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from functools import wraps
from pkgutil import resolve_name
from typing import Any

from consumers.email import logs, start
from consumers.email.gateway import EmailGateway
from outbox.consumer import Consumer
from outbox.errors import ConfigurationError, DatabaseUnavailable
from outbox.job import Job
from outbox.lease import Leases
from outbox.outcome import REAL, Answer
from outbox.settings import OutboxSettings
from outbox.wake import Wake
from tests.faults.storm import moments
from tests.hurry import WAITS

#: Further waits that only cost a test its time.
OVERRIDES: Mapping[str, object] = {
    **WAITS,
    "outbox.lane.PROBE_SECONDS_MAX": 0.1,
    "outbox.outcome.RETRY_AFTER_SECONDS_MAX": 0.1,
    "outbox.consumer._RETRY_SECONDS": 0.05,
    "outbox.wake._RECONNECT_SECONDS": 0.1,
}
#: Libpq waits no shorter for a server that does not answer.
CONNECT_SECONDS = "2"
#: The transport's word for a call that the last check before the first byte has stopped.
NOT_STARTED = "not_started"
#: A heartbeat that is so late, as a share of the lease, may have cost it.
LATE = 0.6
#: The exit code of a consumer that is refused for good.
WRONG_USE = 2


class Act(StrEnum):
    """What a consumer does to itself at its moment."""

    KILL = "SIGKILL"
    STOP = "SIGSTOP"
    #: It blocks its own event loop.
    BLOCK = "block"


class Sign(StrEnum):
    """What a line of the journal says."""

    BEGIN = "+"
    END = "-"
    #: Its intent is committed, and a call for it may begin.
    OPEN = "?"
    #: It is settled, or its claim was lost.
    CLOSED = "."
    #: A call that was started at that time (seconds), under a claim of that version, for that key.
    CALL = ">"
    #: A call without a real answer.
    UNANSWERED = "!"
    #: No heartbeat from that time (seconds) until now.
    LATE = "~"
    #: It has come to its moment.
    STRUCK = "*"


@dataclass(frozen=True, slots=True)
class Birth:
    """How a consumer is to live.

    ``act`` happens when ``moment`` comes for the ``turn``-th time; ``seconds`` belong to a block.
    ``wall_clock``: how its ``time.time`` goes wrong. ``heartbeats_fail``: so many in a row fail,
    after the first. ``overrides``: module attributes of the library. ``in_earnest``: all
    waits are production's. ``plant``: a function (``package.module:name``) that breaks something
    first, to see whether anybody notices.
    """

    journal: str
    log: str
    settings: Mapping[str, str]
    drain: bool = True
    timeout_seconds: float = 600.0
    moment: str | None = None
    turn: int = 1
    act: str = Act.KILL
    seconds: float = 0.0
    wall_clock: str | None = None
    heartbeats_fail: int = 0
    overrides: Mapping[str, float] = field(default_factory=dict)
    in_earnest: bool = False
    plant: str | None = None


def live(birth: Birth) -> None:
    """Live to the end of it; does not return."""
    code = 70
    try:
        descriptor = os.open(birth.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, 2)
        code = _consume(birth)
    except ConfigurationError as error:
        # As ``email-consumer`` ends, and not a consumer's fault.
        sys.stderr.write(f"{error}\n")
        code = WRONG_USE
    except BaseException:  # noqa: BLE001 -- whatever it is, this process must not live on as a copy
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _consume(birth: Birth) -> int:
    os.environ.update(birth.settings)
    write = journal(birth.journal)
    if not birth.in_earnest:
        override({**OVERRIDES, **birth.overrides})
    if birth.plant is not None:
        resolve_name(birth.plant)()
    _tell_of_work(write)
    _tell_of_late_heartbeats(write, OutboxSettings.load().lease_seconds * LATE)
    if birth.heartbeats_fail:
        _fail_heartbeats(write, birth.heartbeats_fail)
    if birth.moment is not None:
        moments.watch(_striker(birth, write))
    if birth.wall_clock is not None:
        time.time = WALL_CLOCKS[birth.wall_clock]()
    logs.set_up(verbose=False)
    return start.run(start.Run(drain=birth.drain, timeout_seconds=birth.timeout_seconds))


def override(values: Mapping[str, object]) -> None:
    """Replace module attributes by their full names."""
    for name, value in values.items():
        place, _, attribute = name.rpartition(".")
        setattr(resolve_name(place), attribute, value)
    resolve_name("outbox.connection._KEEPALIVE")["connect_timeout"] = CONNECT_SECONDS


def now() -> float:
    """The system's real time, as the mail service's record has it."""
    return time.clock_gettime(time.CLOCK_REALTIME)


Write = Callable[[Sign, str], None]
_claim_version: ContextVar[int] = ContextVar("claim_version")
#: Whether the intent of the job that this task is at work on is committed.
_open: ContextVar[bool] = ContextVar("open", default=False)


def journal(path: str) -> Write:
    """A writer whose lines survive whatever becomes of this process."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(sign: Sign, words: str) -> None:
        os.write(descriptor, f"{now():.6f} {sign} {words}\n".encode())

    return write


def _tell_of_work(write: Write) -> None:
    work: Callable[..., Any] = Consumer._work
    begun: Callable[..., Any] = Consumer._call
    call: Callable[..., Any] = EmailGateway.call

    @wraps(work)
    async def told_work(self: Consumer, job: Job) -> None:
        write(Sign.BEGIN, job.effect_key)
        _claim_version.set(job.claim_version)
        try:
            await work(self, job)
        finally:
            if _open.get():
                write(Sign.CLOSED, job.effect_key)
            write(Sign.END, job.effect_key)

    @wraps(begun)
    async def told_begun(self: Consumer, job: Job, *begun_: Any, **named: Any) -> Any:
        write(Sign.OPEN, job.effect_key)
        _open.set(True)
        return await begun(self, job, *begun_, **named)

    @wraps(call)
    async def told_call(
        self: EmailGateway, wire_key: str, body: bytes | None, **named: Any
    ) -> Answer:
        started = now()
        answer: Answer = await call(self, wire_key, body, **named)
        if answer.reason != NOT_STARTED:
            write(Sign.CALL, f"{started:.6f} {_claim_version.get()} {wire_key}")
        if answer.meaning not in REAL:
            write(Sign.UNANSWERED, wire_key)
        return answer

    Consumer._work = told_work  # type: ignore[method-assign]
    Consumer._call = told_begun  # type: ignore[method-assign]
    EmailGateway.call = told_call  # type: ignore[method-assign]


def _tell_of_late_heartbeats(write: Write, seconds: float) -> None:
    """A machine that was too busy is a fault, too, and is not to be taken for anybody else's."""
    extend: Callable[..., Any] = Leases.extend
    seen: Callable[..., Any] = Wake.seen
    last = now()

    def beaten() -> None:
        nonlocal last
        if now() - last > seconds:
            write(Sign.LATE, f"{last:.6f}")
        last = now()

    @wraps(extend)
    async def told_extend(self: Leases) -> list[int]:
        lost: list[int] = await extend(self)
        beaten()
        return lost

    @wraps(seen)
    async def told_seen(self: Wake) -> None:
        beaten()
        await seen(self)

    Leases.extend = told_extend  # type: ignore[method-assign]
    Wake.seen = told_seen  # type: ignore[method-assign]


def _fail_heartbeats(write: Write, times: int) -> None:
    extend: Callable[..., Any] = Leases.extend
    beats = 0

    @wraps(extend)
    async def failing(self: Leases) -> list[int]:
        nonlocal beats
        beats += 1
        if 1 < beats <= times + 1:
            write(Sign.STRUCK, "heartbeat")
            raise DatabaseUnavailable("a heartbeat that the rig lets fail")
        lost: list[int] = await extend(self)
        return lost

    Leases.extend = failing  # type: ignore[method-assign]


def _striker(birth: Birth, write: Write) -> moments.Arrive:
    seen: Counter[str] = Counter()

    def arrive(moment: str) -> None:
        seen[moment] += 1
        if moment != birth.moment or seen[moment] != birth.turn:
            return
        write(Sign.STRUCK, moment)
        if birth.act == Act.BLOCK:
            time.sleep(birth.seconds)
            write(Sign.LATE, f"{now() - birth.seconds:.6f}")
        else:
            os.kill(os.getpid(), signal.Signals[birth.act])

    return arrive


def _hours(hours: float) -> Callable[[], Callable[[], float]]:
    return lambda: lambda: now() + hours * 3_600


def _frozen() -> Callable[[], float]:
    moment = now()
    return lambda: moment


def _jumping() -> Callable[[], float]:
    """Each look at it is up to a day off, in either direction."""
    looks = 0

    def look() -> float:
        nonlocal looks
        looks += 1
        return now() + (looks * 7_919 % 2_003 - 1_001) * 86.4

    return look


#: Ways in which a wall clock can be wrong.
WALL_CLOCKS: Mapping[str, Callable[[], Callable[[], float]]] = {
    "a day ahead": _hours(24),
    "a day behind": _hours(-24),
    "frozen": _frozen,
    "jumping": _jumping,
}
