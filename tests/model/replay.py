"""Replays traces of the model on the shipped code and a real PostgreSQL, step by step.

The processes are shipped consumers (``process``) whose own story of a job runs as it ships. Only
its edges are held: each statement waits until the trace says that it runs, and then until the trace
says whether its answer arrives; the provider answers what the trace says. Leases run out and time
passes in the database, by SQL, and on the consumers' clock. After each step the tables are read,
and must say what the model says.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from itertools import count, pairwise
from typing import Any
from unittest import mock

import psycopg

from outbox.cancel import cancel
from outbox.clock import boot_seconds
from outbox.connection import Connection
from outbox.enqueue import Outbox
from outbox.operator import Operator
from outbox.outcome import UNREADABLE
from outbox.resolve import Resolution, resolve
from outbox.retry import Permission, retry
from tests.model.process import CALL, LEASE_SECONDS, TOPIC, Process
from tests.model.seat import Disagreement, Line
from tests.model.spec import holds
from tests.model.state import (
    GONE,
    LAPSED,
    TICK_SECONDS,
    Action,
    Consumer,
    Decision,
    Effect,
    Job,
    State,
    World,
)
from tests.model.surroundings import receive

Trace = Sequence[tuple[Action, State]]

JOBS = """
SELECT id, claim_version, claimed_by, attempts, waiting, lease_until IS NOT NULL,
    coalesce(lease_until > clock_timestamp(), false), NULL, NULL,
    coalesce(expires_at <= clock_timestamp(), false)
FROM outbox.job
UNION ALL
SELECT id, claim_version, NULL, attempts, NULL, false, false, ended_as, reason,
    coalesce(expires_at <= clock_timestamp(), false)
FROM outbox.ended_job
"""
EFFECTS = """
SELECT effect_key, job_id, claim_version, requests_sent,
    extract(epoch FROM clock_timestamp() - open_since)::float8,
    coalesce(open_since = last_attempt_at, false), state, request IS NOT NULL, detail, request_hash
FROM outbox.effect
"""
OLDER = """
UPDATE outbox.effect
SET open_since = open_since - %(passed)s, last_attempt_at = last_attempt_at - %(passed)s,
    first_attempt_at = first_attempt_at - %(passed)s
"""
LAPSE = "UPDATE outbox.job SET lease_until = clock_timestamp() - interval '1 s' WHERE id = %s"
DUE = "UPDATE outbox.job SET available_at = clock_timestamp() WHERE id = %s AND waiting = 'backoff'"
EXPIRE = "UPDATE outbox.job SET expires_at = clock_timestamp() WHERE id = %s"
UNCLAIM = """
UPDATE outbox.job
SET claim_version = claim_version - 1, attempts = attempts - 1,
    claimed_by = NULL, claimed_at = NULL, lease_until = NULL
WHERE id = %s
"""


class Bench:
    """A database, and what is needed to replay traces on it one after the other."""

    def __init__(self, real: Connection, connections: list[psycopg.Connection]) -> None:
        self.line = Line(real)
        self.sql, self.locks, people, people_beside = connections
        self.operator, self.operator_beside = Operator(people), Operator(people_beside)
        self.passed_seconds = 0.0

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator[Bench]:
        """Connect; the clock of the shipped consumers runs ahead by the ticks that have passed."""
        with ExitStack() as stack:
            connections = [
                stack.enter_context(psycopg.connect(url, autocommit=True)) for _ in range(4)
            ]
            async with Connection(url, "model") as real:
                bench = cls(real, connections)
                for module in ("consumer", "ledger", "lease", "claim"):
                    stack.enter_context(
                        mock.patch(f"outbox.{module}.boot_seconds", bench._boot_seconds)
                    )
                stack.enter_context(mock.patch("outbox.consumer._RETRY_SECONDS", 0.0))
                logging.getLogger("outbox").setLevel(logging.CRITICAL)
                stack.callback(logging.getLogger("outbox").setLevel, logging.NOTSET)
                yield bench

    def _boot_seconds(self) -> float:
        return boot_seconds() + self.passed_seconds

    async def replay(self, w: World, trace: Trace) -> None:
        """Walk along a trace.

        Raises:
            Disagreement: the shipped code went another way; the text holds the trace up to there.
        """
        async with self.history(w) as history:
            await history.walk(trace)

    @asynccontextmanager
    async def history(self, w: World) -> AsyncIterator[Replay]:
        """Begin anew: empty tables, then the jobs of a world."""
        for table in ("job", "ended_job", "effect"):
            self.sql.execute(f"DELETE FROM outbox.{table}")
        self.passed_seconds = 0.0
        history = Replay(self, w)
        try:
            yield history
        finally:
            await history.close()


class Replay:
    """One trace in progress."""

    def __init__(self, bench: Bench, w: World) -> None:
        self._bench = bench
        self._w = w
        self._tokens = count()
        self.processes: list[Process] = []
        self._start_processes(range(w.consumers))
        self.ids = []
        with bench.locks.transaction():
            for key in w.keys:
                job_id = Outbox().enqueue(bench.locks, TOPIC, {}, effect_key=f"key-{key}")
                self.ids.append(job_id)
        #: The hash of each freezing of each key's request, as it was first seen.
        self._hashes: dict[tuple[int, int], bytes] = {}
        self._before = self._after = w.start()

    @classmethod
    def kinds(cls) -> set[str]:
        """Return the kinds of steps that it can do."""
        return {name.removeprefix("_do_") for name in vars(cls) if name.startswith("_do_")}

    async def walk(self, trace: Trace) -> None:
        """Take each step of a trace and compare; raises Disagreement with the trace up to it."""
        for number, ((_, before), (action, after)) in enumerate(pairwise(trace), start=2):
            try:
                await self._take(action, before, after)
                self.compare(after)
            except Exception as error:
                steps = "\n".join(f"  {' '.join(map(str, step))}" for step, _ in trace[1:number])
                found = Disagreement(f"{error!r} after\n{steps}")
                found.at = number - 1
                raise found from error

    async def _take(self, action: Action, before: State, after: State) -> None:
        self._before, self._after = before, after
        name, *arguments = action
        await getattr(self, f"_do_{name}")(*arguments)

    async def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            await process.crash()

    # -- what a consumer does ----------------------------------------------------------------------

    async def _do_claim(self, c: int, j: int, *, crashed: bool = False) -> None:
        with self._only(j):
            await self.processes[c].claim(crashed=crashed)
        job, me = self.processes[c].job, self._after.consumers[c]
        assert job is not None
        assert me is not None
        assert (job.id, job.claim_version, job.attempts) == (self.ids[j], me.version, me.attempts)

    async def _do_claim_crashed(self, c: int, j: int) -> None:
        await self._do_claim(c, j, crashed=True)

    async def _do_claim_lost(self, c: int, j: int, *, crashed: bool = False) -> None:
        with self._only(j):
            await self.processes[c].lose_claim(crashed=crashed)

    async def _do_claim_crashed_lost(self, c: int, j: int) -> None:
        await self._do_claim_lost(c, j, crashed=True)

    async def _do_begin(self, c: int) -> None:
        await self._run(c, "begin_effects")

    async def _do_begin_lost(self, c: int) -> None:
        await self._run_and_lose(c, "begin_effects")

    async def _do_read(self, c: int) -> None:
        await self._run(c, "read_effects")

    async def _do_reopen(self, c: int) -> None:
        await self._check_requests_seen(c)
        await self._run(c, "reopen_effects")

    async def _do_reopen_lost(self, c: int) -> None:
        await self._check_requests_seen(c)
        await self._run_and_lose(c, "reopen_effects")

    async def _do_settle(self, c: int) -> None:
        await self.check_decision(c, self._before.consumers[c])
        await self._run(c, "settle_attempts")

    async def _do_settle_lost(self, c: int) -> None:
        await self.check_decision(c, self._before.consumers[c])
        await self._run_and_lose(c, "settle_attempts")

    async def _do_heartbeat(self, c: int) -> None:
        process, me = self.processes[c], self._before.consumers[c]
        assert process.job is not None
        assert me is not None
        settles = me.phase == "settle"
        if settles:  # that the row is gone by now is no loss
            await process.seat.expect("settle_attempts")
        told = [] if settles or holds(self._w, self._before, c, me) else [process.job.id]
        assert await process.leases.extend() == told

    async def _do_crash(self, c: int) -> None:
        dying = range(self._w.consumers) if self._w.one_process else [c]
        for each in dying:
            await self.processes[each].crash()
        self._start_processes(dying)

    # -- its call, and the provider ----------------------------------------------------------------

    async def _do_leave(self, c: int) -> None:
        process, me = self.processes[c], self._before.consumers[c]
        assert me is not None
        await process.seat.go_on(CALL, "leave")
        await process.seat.expect(CALL)
        key = self._w.keys[me.job]
        assert process.provider.key == f"key-{key}"
        assert process.provider.body_hash == self._hashes[key, me.body], "not the frozen bytes"

    async def _do_stop_after_check(self, c: int) -> None:
        await self._do_leave(c)

    async def _do_leave_after_stop(self, c: int) -> None:
        await self.processes[c].seat.expect(CALL)

    async def _do_check_fails(self, c: int) -> None:
        await self.processes[c].seat.expect("settle_attempts")

    async def _do_lease_too_short(self, c: int) -> None:
        process = self.processes[c]
        assert process.job is not None
        process.leases.add([process.job], since=-LEASE_SECONDS)
        await process.seat.expect("settle_attempts")

    async def _do_arrive(self, c: int) -> None:
        me = self._before.consumers[c]
        assert me is not None
        _, meaning = receive(self._w, self._before.mails[self._w.keys[me.job]], me.job, me.body)
        if meaning != "ACCEPTED":
            await self._do_lose(c, meaning)

    async def _do_lose(self, c: int, meaning: str) -> None:
        await self.processes[c].seat.go_on(CALL, meaning)

    async def _do_unreached(self, c: int) -> None:
        await self._do_lose(c, "UNREACHED")

    async def _do_refuse(self, c: int) -> None:
        await self._do_lose(c, "REFUSED")

    async def _do_throttle(self, c: int) -> None:
        await self._do_lose(c, "THROTTLED")

    async def _do_deliver(self, c: int) -> None:
        await self._do_lose(c, "ACCEPTED")

    async def _do_deliver_unreadable(self, c: int) -> None:
        await self._do_lose(c, "ACCEPTED_UNREADABLE")

    async def _do_arrive_late(self, key: int, job: int, body: int) -> None:
        """Only the provider notices."""

    async def _do_forget(self, key: int) -> None:
        """Only the provider knows."""

    # -- time and people ---------------------------------------------------------------------------

    async def _do_lapse(self, j: int) -> None:
        self._bench.sql.execute(LAPSE, [self.ids[j]])
        for process in self.processes:
            if process.job is not None and process.job.id == self.ids[j]:
                await process.leases.extend()

    async def _do_expire(self, j: int) -> None:
        self._bench.sql.execute(EXPIRE, [self.ids[j]])

    async def _do_tick(self) -> None:
        self._bench.sql.execute(OLDER, {"passed": timedelta(seconds=TICK_SECONDS)})
        self._bench.passed_seconds += TICK_SECONDS

    async def _do_promote(self, j: int) -> None:
        self._bench.sql.execute(DUE, [self.ids[j]])
        await self._do_release(j)

    async def _do_release(self, j: int) -> None:
        with self._only(j):
            await self.processes[0].claims.promote()

    async def _do_fail_over(self, c: int) -> None:
        me = self._before.consumers[c]
        assert me is not None
        self._bench.sql.execute(UNCLAIM, [self.ids[me.job]])

    async def _do_cancel(self, j: int) -> None:
        (answer,) = cancel(self._bench.operator, [self.ids[j]])
        # What was cancelled before is told so, and is no refusal.
        cancelled = self._after.jobs[j].place == "cancelled"
        assert (answer.refusal is None) == cancelled

    async def _do_retry(self, j: int, allowed: str = "") -> None:
        permission = Permission(send_again=bool(allowed))
        (answer,) = retry(self._bench.operator, [self.ids[j]], permission)
        assert (answer.refusal is None) == self._changed

    async def _do_resolve(self, key: int, how: str) -> None:
        (answer,) = resolve(self._bench.operator, [f"key-{key}"], Resolution(how))
        assert answer.done == self._changed

    @property
    def _changed(self) -> bool:
        return self._before[:2] != self._after[:2]

    def _start_processes(self, seats: Sequence[int]) -> None:
        """Tasks of one process have its name in common."""
        token = f"{next(self._tokens)}"
        for c in seats:
            if not self._w.one_process:
                token = f"{next(self._tokens)}"
            self.processes[c : c + 1] = [Process(self._w, self._bench.line, token)]

    # -- the parts of a step -----------------------------------------------------------------------

    async def _run(self, c: int, statement: str) -> None:
        await self.processes[c].seat.run(statement)
        if self._after.consumers[c] is None:
            await self.processes[c].ended()

    async def _run_and_lose(self, c: int, statement: str) -> None:
        await self.processes[c].seat.run(statement)
        self.processes[c].seat.let_answer(arrive=False)

    async def _check_requests_seen(self, c: int) -> None:
        seat, me = self.processes[c].seat, self._before.consumers[c]
        await seat.expect("reopen_effects")
        assert me is not None
        assert seat.parameters["requests_seen"] == [me.sent]

    async def check_decision(self, c: int, me: Consumer | None) -> None:
        """Compare what a process is about to settle with what the model has decided."""
        seat = self.processes[c].seat
        await seat.expect("settle_attempts")
        (told,) = json.loads(seat.parameters["outcomes"])
        assert me is not None
        if (decision := _decision(told)) != me.decision:
            raise Disagreement(f"the model settles {me.decision}, the code {decision}")

    @contextmanager
    def _only(self, j: int) -> Iterator[None]:
        """Keep all other jobs out of everybody's reach: their rows are locked."""
        with self._bench.locks.transaction(force_rollback=True):
            self._bench.locks.execute(
                "SELECT FROM outbox.job WHERE id <> %s FOR UPDATE", [self.ids[j]]
            )
            yield

    # -- comparing ---------------------------------------------------------------------------------

    def compare(self, s: State) -> None:
        """Read the tables and compare them with the model's state.

        Raises:
            Disagreement: they differ.
        """
        jobs, effects = self._jobs(s), self._effects(s)
        if (jobs, effects) != (s.jobs, s.effects):
            raise Disagreement(
                f"the model says\n  {s.jobs}\n  {s.effects}\nthe tables\n  {jobs}\n  {effects}"
            )

    def _jobs(self, s: State) -> tuple[Job, ...]:
        found = {}
        for (
            id_,
            version,
            name,
            attempts,
            waiting,
            claimed,
            holds_,
            ended,
            reason,
            expired,
        ) in self._bench.sql.execute(JOBS):
            place = ended or waiting or ("claimed" if claimed else "ready")
            by = self._holder(s, self.ids.index(id_), version, name)
            found[id_] = Job(place, version, by, holds_, attempts, reason, expired)
        return tuple(
            found.get(id_, Job("done", s.jobs[j].version)) for j, id_ in enumerate(self.ids)
        )

    def _holder(self, s: State, j: int, version: int, name: str | None) -> int:
        """Whoever believes in no claim any more is its job's holder in name only."""
        for c, me in enumerate(s.consumers):
            believes = me is not None and (me.job, me.version) == (j, version)
            if believes and self.processes[c].name == name:
                return c
        return GONE

    def _effects(self, s: State) -> tuple[Effect | None, ...]:
        found = {}
        for (
            name,
            job,
            version,
            sent,
            open_seconds,
            sole,
            state,
            frozen,
            detail,
            hash_,
        ) in self._bench.sql.execute(EFFECTS):
            key = int(name.removeprefix("key-"))
            age = None if open_seconds is None else min(int(open_seconds / TICK_SECONDS), LAPSED)
            expected = s.effects[key]
            body = 0 if expected is None else expected.body
            if frozen and self._hashes.setdefault((key, body), hash_) != hash_:
                body = -1
            found[key] = Effect(
                self.ids.index(job), version, sent, age, sole, state, body, frozen,
                detail == UNREADABLE,
            )  # fmt: skip
        return tuple(found.get(key) for key in range(len(s.effects)))


def _decision(told: dict[str, Any]) -> Decision:
    """Return what a settle statement is given, in the model's words."""
    return Decision(
        action=told["job_action"],
        reason=told["reason"],
        state=told["effect_state"],
        seen=told["requests_seen"],
        nothing_open=told["nothing_open"],
        refund=told["refund"],
        unreadable=told["detail"] == UNREADABLE,
    )
