"""One history: a database, a provider, orders, consumers, faults; then peace, and judgement."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import psycopg

from shop_example.demo.leash import Leash
from tests.faults import oracle
from tests.faults.oracle import Verdict
from tests.faults.provider import Provider
from tests.faults.storm.exposure import Blow, Exposure, expose, read_journal
from tests.faults.storm.lives import Hang, Life, Nursery
from tests.faults.storm.server import Server
from tests.faults.storm.shop import Shop
from tests.waiting import eventually

T = TypeVar("T")

#: Short times, whose relations are as the settings want them. Nothing ends for its attempts.
SETTINGS = {
    "EMAIL_APP": "shop_example.emails:emails",
    "EMAIL_PROVIDER": "resend",
    "EMAIL_API_KEY": "a-key",
    "EMAIL_FROM": "Shop <shop@example.com>",
    "EMAIL_TIMEOUT_SECONDS": "0.5",
    "EMAIL_CONCURRENCY": "4",
    "OUTBOX_LEASE_SECONDS": "1.0",
    "OUTBOX_HEARTBEAT_SECONDS": "0.1",
    "OUTBOX_POLL_SECONDS": "0.1",
    "OUTBOX_BACKOFF_SECONDS": "0.05",
    "OUTBOX_BACKOFF_MAX_SECONDS": "0.2",
    "OUTBOX_MAX_ATTEMPTS": "1000",
}
#: A provider that keeps no keys, and what is to be done about what is unknown.
WITHOUT_KEYS = {"EMAIL_KEY_WINDOW_SECONDS": "0", "EMAIL_UNKNOWN": "hold"}
RECORD = "mails.jsonl"
DRAIN_SECONDS = 60.0
DRAINING = 2
PROBLEMS_KEPT = 10
#: What ``EMAIL_UNKNOWN=repeat`` costs.
AGAIN = "accepted again, as documented"


@dataclass(frozen=True, slots=True)
class World:
    """What all histories share, and where they leave what they write.

    ``plant``: see ``life.Birth``; ``settings`` come on top of every consumer's.
    """

    directory: Path
    leash: Leash
    server: Server
    nursery: Nursery
    plant: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chapter:
    """Which history: replayed by the same words."""

    kind: str
    keeps_keys: bool
    seed: int

    def __str__(self) -> str:
        return f"{self.kind}:{'keys' if self.keeps_keys else 'none'}:{self.seed}"

    @classmethod
    def parse(cls, text: str) -> Chapter:
        """Read what ``str`` has written.

        Raises:
            ValueError: it has not.
        """
        kind, provider, seed = text.split(":")
        if provider not in {"keys", "none"}:
            raise ValueError(f"{text}: keys or none, not {provider}")
        return cls(kind, provider == "keys", int(seed))


@dataclass(frozen=True, slots=True)
class Result:
    """What one history has shown, as the state file keeps it.

    ``faults``: the kind's own count, the one that the aims speak of; ``tally``: what else was
    counted. ``problems``: by effect key, or by the name of what is no order's, the first of
    ``wrong``.
    """

    chapter: str
    kind: str
    keeps_keys: bool
    seed: int
    faults: int
    tally: Mapping[str, int]
    orders: int
    requests: int
    accepted: int
    in_flight: int
    late_heartbeats: int
    verdicts: Mapping[str, int]
    wrong: int
    problems: Mapping[str, Sequence[str]]
    drain_seconds: float
    seconds: float
    directory: str | None = None

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """As a mapping."""
        return asdict(self)


Story = Callable[["History", int], None]


class History:
    """What the kinds of fault work with."""

    def __init__(
        self, world: World, chapter: Chapter, directory: Path, database_url: str, provider: Provider
    ) -> None:
        self.world = world
        self.chapter = chapter
        self.directory = directory
        self.database_url = database_url
        self.provider = provider
        self.dice = Random(str(chapter))
        self.shop = Shop(database_url)
        self.blows: list[Blow] = []
        #: The kind's own count of its faults.
        self.faults = 0
        self.tally: Counter[str] = Counter()
        self.problems: dict[str, list[str]] = {}
        #: What all consumers of this history are given beside the usual.
        self.own_settings: dict[str, str] = {}
        #: How long the longest drain has taken, from the last fault on.
        self.drain_seconds = 0.0
        #: Whether an order may be held although the provider replays keys.
        self.may_hold = not chapter.keeps_keys
        #: Whether an order may be sent again that may have been sent, and so be accepted twice.
        self.may_repeat = False
        self.lives: list[Life] = []
        self._lock = threading.Lock()
        self._open = ExitStack()

    def settings(self, **more: str) -> dict[str, str]:
        """A consumer's environment."""
        return {
            **SETTINGS,
            **({} if self.chapter.keeps_keys else WITHOUT_KEYS),
            "OUTBOX_DATABASE_URL": self.database_url,
            "EMAIL_API_URL": self.provider.url,
            **self.own_settings,
            **self.world.settings,
            **more,
        }

    def until_drained(self, context: AbstractContextManager[T]) -> T:
        """Enter a context that the drain needs, too; it ends with the history."""
        return self._open.enter_context(context)

    def close(self) -> None:
        """End what is still open."""
        self.shop.close()
        self._open.close()

    def live_through(self, story: Story, faults: int) -> None:
        """Let the story happen, and drain what it leaves. Who hangs is to blame, and ends here."""
        try:
            story(self, faults)
            self.drain()
        except (Hang, AssertionError) as error:
            self.blame("drain", f"never came about: {error}")
        for life in self.lives:
            if not life.ended:
                life.send(signal.SIGKILL)
                life.wait()

    def consumer(self, settings: Mapping[str, str] | None = None, **how: Any) -> Life:
        """Start one, to live as ``life.Birth`` says."""
        how.setdefault("plant", self.world.plant)
        life = self.world.nursery.consumer(self.directory, settings or self.settings(), **how)
        with self._lock:
            self.lives.append(life)
        return life

    def blow(self, at: float, until: float | None = None, number: int | None = None) -> None:
        """A fault has struck; see ``exposure.Blow``."""
        with self._lock:
            self.blows.append(Blow(at, at if until is None else until, number))

    def count(self, *names: str, number: int = 1) -> None:
        """Count something."""
        with self._lock:
            for name in names:
                self.tally[name] += number

    def add_fault(self, name: str, number: int = 1) -> None:
        """Count one or more of the kind's own faults, and under a name."""
        with self._lock:
            self.faults += number
            self.tally[name] += number

    def blame(self, whom: str, what: str) -> None:
        """Something is not as it must be."""
        with self._lock:
            self.problems.setdefault(whom, []).append(what)

    def query(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Rows of a query of the rig's own."""
        with psycopg.connect(self.database_url) as connection:
            return connection.execute(statement, parameters).fetchall()

    def wait_for_leases(self) -> None:
        """Let all leases run out."""
        query = "SELECT coalesce(max(lease_until) < clock_timestamp(), true) FROM outbox.job"
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            eventually(lambda: connection.execute(query).fetchone() == (True,), 30)

    def drain(self) -> None:
        """Let consumers that nothing happens to bring all that is left to its end."""
        started = time.monotonic()
        drains = [self.consumer(timeout_seconds=DRAIN_SECONDS) for _ in range(DRAINING)]
        for life in drains:
            if life.wait().code != 0:
                self.blame(f"drain {life.number}", f"ended with {life.code or life.signal}")
        self.drain_seconds = max(self.drain_seconds, time.monotonic() - started)

    # -- judgement --------------------------------------------------------------------------------

    def judge(self, seconds: float) -> Result:
        """Ask the oracle, once all faults are over and the queue is drained."""
        orders = oracle.read_orders(self.database_url)
        told = self._told()
        works = {life.number: read_journal(life.journal) for life in self.lives}
        exposure = expose(works, self.blows)
        judgement = oracle.judge(
            orders,
            self.provider.record,
            told,
            drained=not any(whom.startswith("drain") for whom in self.problems),
            faults=self._faults_met(orders, exposure),
        )
        verdicts = self._without_repeats(judgement.verdicts, exposure)
        self._blame_verdicts(verdicts)
        totals = Counter(verdict for found in verdicts.values() for verdict in found)
        return Result(
            str(self.chapter),
            self.chapter.kind,
            self.chapter.keeps_keys,
            self.chapter.seed,
            faults=self.faults,
            tally=dict(self.tally),
            orders=len(orders),
            requests=judgement.requests,
            accepted=judgement.accepted,
            in_flight=exposure.in_flight,
            verdicts={verdict.value: n for verdict, n in totals.items()},
            late_heartbeats=exposure.late_heartbeats,
            wrong=len(self.problems),
            problems=dict(list(self.problems.items())[:PROBLEMS_KEPT]),
            drain_seconds=round(self.drain_seconds, 3),
            seconds=round(seconds, 3),
            directory=str(self.directory) if self.problems else None,
        )

    def _faults_met(self, orders: Iterable[int], exposure: Exposure) -> dict[int, int]:
        """What the provider can't see; a call without an answer that it knows of is its own."""
        traffic = oracle.read_record(self.provider.record)
        met = {}
        for order in orders:
            key = oracle.KEY.format(order)
            seen = (
                sum(request.met_fault for request in traffic[key].requests) if key in traffic else 0
            )
            met[order] = exposure.met[key] + max(0, exposure.unanswered[key] - seen)
        return met

    def _without_repeats(
        self, verdicts: Mapping[str, frozenset[Verdict]], exposure: Exposure
    ) -> dict[str, frozenset[Verdict]]:
        """Count what was accepted again as documented, and no longer as a duplicate.

        For each e-mail but one, somebody died after its intent was committed and before its answer
        was settled, or had no answer.
        """
        kept = dict(verdicts)
        if not self.may_repeat:
            return kept
        traffic = oracle.read_record(self.provider.record)
        for key, found in verdicts.items():
            again = traffic[key].accepted - 1 if Verdict.DUPLICATED in found else 0
            if 0 < again <= exposure.left_open[key] + exposure.unanswered[key]:
                kept[key] = found - {Verdict.DUPLICATED}
                self.count(AGAIN, number=again)
        return kept

    def _blame_verdicts(self, verdicts: Mapping[str, frozenset[Verdict]]) -> None:
        fine = {Verdict.DELIVERED_ONCE}
        if self.may_hold:
            fine.add(Verdict.HELD)
        for key, found in verdicts.items():
            for verdict in found - fine:
                self.blame(key, verdict.value)

    def _told(self) -> list[str]:
        """What the command line says of all effects and jobs."""
        lines: list[str] = []
        for words in (["effects", "list"], ["jobs", "--state", "all"]):
            output = self.directory / f"{words[0]}.jsonl"
            command = [*words, "--limit", "1000000", "--json"]
            life = self.world.nursery.program(
                self.directory, "outbox", command, output, self.settings()
            )
            if life.wait().code != 0:
                self.blame("outbox", f"{words} ended with {life.code or life.signal}")
            lines += output.read_text().splitlines()
        return lines


def tell(
    world: World, chapter: Chapter, story: Story, faults: int, options: Sequence[str] = ()
) -> Result:
    """Let one history happen with about so many faults, and judge it.

    What it has written is kept only if something is wrong with it.
    """
    started = time.monotonic()
    directory = world.directory / str(chapter).replace(":", "-")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    with _provider(world, directory, chapter, options) as provider:
        database_url = world.server.create()
        with closing(History(world, chapter, directory, database_url, provider)) as history:
            history.live_through(story, faults)
            result = history.judge(time.monotonic() - started)
        world.server.drop(database_url)
    if result.clean:
        shutil.rmtree(directory)
    else:
        (directory / "result.json").write_text(json.dumps(result.as_json(), indent=2) + "\n")
    return result


@contextmanager
def _provider(
    world: World, directory: Path, chapter: Chapter, options: Sequence[str]
) -> Iterator[Provider]:
    """A mail service with a record of this history's own."""
    output = directory / "mail-service.jsonl"
    words = ["--port", "0", "--json", "--record", str(directory / RECORD), *options]
    words += [] if chapter.keeps_keys else ["--no-keys"]
    service = world.nursery.program(directory, "mail-service", words, output)
    try:
        line = eventually(lambda: _first_line(output), 60)
        yield Provider(json.loads(line)["url"], directory / RECORD, chapter.keeps_keys)
    finally:
        service.send(signal.SIGTERM)
        service.wait()


def _first_line(path: Path) -> str | None:
    line, end, _ = path.read_text().partition("\n") if path.exists() else ("", "", "")
    return line if end else None
