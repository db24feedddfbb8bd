"""The consumer: claim, render, begin, call, settle."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import psycopg

from outbox import schema
from outbox.batch import Batch
from outbox.claim import Claims
from outbox.clock import boot_seconds
from outbox.connection import Connection
from outbox.errors import DatabaseUnavailable, LeaseLost, OutboxError
from outbox.evidence import Evidence
from outbox.gateway import Gateway, Unrenderable
from outbox.intake import Intake
from outbox.job import Attempt, Job
from outbox.lane import Lane
from outbox.lease import Leases
from outbox.ledger import Begin, Intent, Ledger
from outbox.legible import legible
from outbox.outcome import REAL, Answer, JobAction, Meaning, Outcome, after_answer, not_started
from outbox.settings import OutboxSettings
from outbox.settle import Settled, Settlement, Settler
from outbox.under_way import UnderWay
from outbox.verdict import Place
from outbox.wake import Wake

_log = logging.getLogger(__name__)
Result = TypeVar("Result")

_BATCH_LIMIT = 100
_RETRY_SECONDS = 0.5
_LOGGED_CHARACTERS = 200
#: Beyond the deadline, for the check itself: a call may use all of its deadline.
_LEASE_MARGIN_SECONDS = 0.1


class Consumer:
    """One consumer process: claims the jobs of its gateway's topics and brings each to an end."""

    def __init__(
        self,
        database_url: str,
        gateway: Gateway,
        settings: OutboxSettings,
        *,
        concurrency: int,
        rate_per_second: float | None = None,
    ) -> None:
        #: Fresh for each process start, so that a restart is never taken for what crashed.
        self.claimed_by = f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(6)}"
        self._database_url = database_url
        self._gateway = gateway
        self._settings = settings
        self._connections = {
            name: Connection(database_url, f"outbox {name} {self.claimed_by}"[:63])
            for name in ("claim", "begin", "settle", "heartbeat", "listen")
        }
        self._concurrency = concurrency
        self._lane = Lane(concurrency, rate_per_second)
        self._under_way = UnderWay()
        self._evidence = Evidence()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._away = False
        self._build()

    def _build(self) -> None:
        link, settings, gateway = self._connections, self._settings, self._gateway
        self._leases = Leases(link["heartbeat"], self.claimed_by, settings.lease_seconds)
        self._claims = Claims(
            link["claim"],
            self._leases,
            self.claimed_by,
            gateway.topics,
            lease_seconds=settings.lease_seconds,
            poll_seconds=settings.poll_seconds,
        )
        self._wake = Wake(
            link["listen"],
            link["heartbeat"],
            self.claimed_by,
            gateway.topics,
            seen_seconds=4 * settings.heartbeat_seconds + 2 * settings.poll_seconds,
        )
        self._intake = Intake(
            self._claims,
            self._lane,
            self._wake,
            self._under_way,
            # Half as many again may wait to be settled; one at a time stays one at a time.
            jobs_max=self._concurrency + self._concurrency // 2,
            poll_seconds=settings.poll_seconds,
        )
        place = Place(gateway.provider, gateway.account, gateway.deadline_seconds)
        ledger = Ledger(link["begin"], self.claimed_by, place, gateway.policy)
        settler = Settler(link["settle"], self.claimed_by)
        here = self._under_way
        self._begins: Batch[Intent, Begin] = Batch(
            self._patiently(ledger.begin),
            limit=_BATCH_LIMIT,
            divisible=psycopg.Error,
            enough=lambda _: here.rendering == 0,
        )
        self._settles: Batch[Settlement, Settled] = Batch(
            self._patiently(settler.settle),
            limit=_BATCH_LIMIT,
            divisible=psycopg.Error,
            enough=lambda waiting: waiting >= here.calling,
        )

    # -- the story of one job ---------------------------------------------------------------------

    async def _work(self, job: Job) -> None:
        try:
            outcome = await self._outcome(job)
            if outcome is None:
                _log.warning("job %d: lease lost before its call; another consumer has it", job.id)
            else:
                await self._settle(job, outcome)
        finally:
            self._leases.remove(job)
            self._under_way.jobs -= 1
            self._intake.slot_free()

    async def _outcome(self, job: Job) -> Outcome | None:
        """Bring one job to its outcome; ``None`` when the claim was lost on the way."""
        if self._stopping:
            return Outcome(JobAction.GIVE_BACK, refund=True)
        intent = await self._intent(job)
        begun = await self._begins.submit(intent)
        if isinstance(begun, LeaseLost):
            return None
        if isinstance(begun, Outcome):
            return begun
        return await self._call(job, begun, party=intent.request.party if intent.request else "")

    async def _intent(self, job: Job) -> Intent:
        """Render the request; what can't or needn't be rendered only asks the ledger."""
        self._under_way.rendering += 1
        try:
            return await self._rendered(job)
        finally:
            self._under_way.rendering -= 1

    async def _rendered(self, job: Job) -> Intent:
        if job.attempts > self._gateway.policy(job.topic).attempts_allowed(job):
            return Intent(job, None, may_insert=False)
        try:
            request = await self._gateway.render(job)
        except Unrenderable as error:
            dead = Outcome(JobAction.DEAD, "unrenderable", detail=str(error))
            return Intent(job, None, may_insert=False, otherwise=dead)
        return Intent(job, request, may_insert=not job.expired)

    async def _call(self, job: Job, attempt: Attempt, party: str) -> Outcome:
        seconds = self._gateway.deadline_seconds

        def may_start() -> bool:
            left = seconds + _LEASE_MARGIN_SECONDS
            in_memory = boot_seconds() + left <= attempt.call_before
            return in_memory and self._leases.allows(job, left)

        if not may_start():
            return not_started(attempt, "lease_too_short")
        started = boot_seconds()
        self._under_way.calling += 1
        try:
            answer = await self._gateway.call(
                attempt.wire_key, attempt.body, deadline_seconds=seconds, may_start=may_start
            )
        finally:
            self._under_way.calling -= 1
        return await self._decide(job, attempt, answer, started, party)

    async def _decide(
        self, job: Job, attempt: Attempt, answer: Answer, started: float, party: str
    ) -> Outcome:
        at_fault = self._lane.at_fault(answer, job.effect_key)
        self._learn(job, answer, party, real=answer.meaning in REAL and not at_fault)
        own = answer.meaning is Meaning.FAILED and await self._evidence.own_fault(
            job.effect_key, started, others=len(self._tasks) > 1
        )
        policy = self._gateway.policy(job.topic)
        return after_answer(answer, job, attempt, policy, lane_answers=own, lane_at_fault=at_fault)

    async def _settle(self, job: Job, outcome: Outcome) -> None:
        self._leases.settling(job)
        self._under_way.settling += 1
        self._intake.slot_free()
        try:
            settled = await self._settles.submit(Settlement(job, outcome))
        except psycopg.Error as error:
            _log.error(
                "job %d: the database refused its outcome (%s); its lease will run out",
                job.id,
                error.sqlstate,
            )
            return
        finally:
            self._under_way.settling -= 1
        _report(job, outcome, settled)

    def _learn(self, job: Job, answer: Answer, party: str, *, real: bool) -> None:
        now, paused = boot_seconds(), self._lane.paused
        self._lane.record(answer, job.effect_key, party, now)
        self._evidence.record(job.effect_key, real=real, now=now)
        if answer.meaning not in REAL:
            _log.info("job %d (%s): %s", job.id, job.effect_key, legible(answer.reason))
        if self._lane.paused is not None and paused is None:
            _log.error(
                "paused: the provider refuses the account or the endpoint (%s); no job is at fault "
                "and none is spent. Mend key, URL, sender domain or quota; a probe goes out now "
                "and then",
                self._lane.paused,
            )
        elif self._lane.paused is None and paused is not None:
            _log.warning("the provider answers again: no longer paused")

    # -- the loop ---------------------------------------------------------------------------------

    async def run(self, *, drain: bool = False, timeout_seconds: float | None = None) -> int:
        """Work until told to stop (or, draining, until nothing is left) and return the exit code.

        Raises:
            SchemaError: the database has no outbox schema, or not this code's.
            ConfigurationError: the server refuses this database, user or password.
        """
        self._on_signals()
        services = [
            asyncio.create_task(service)
            for service in (
                self._begins.serve(),
                self._settles.serve(),
                self._heartbeats(),
                self._wake.listen(),
            )
        ]
        loop = asyncio.create_task(self._loop(drain=drain))
        try:
            async with asyncio.timeout(timeout_seconds):
                code = await _first_end(loop, services)
        except TimeoutError:
            _log.warning("--timeout: %g s have passed; finishing what has begun", timeout_seconds)
            code = 1
        finally:
            self.stop()
            # It ends by itself, after the statement that it is at: what that claimed is given back.
            await asyncio.gather(loop, return_exceptions=True)
            finished = await self._finish(services)
        return code if finished else 1

    def stop(self) -> None:
        """Stop claiming; give back what has not begun, finish what has."""
        self._stopping = True
        self._intake.nudge()

    async def _loop(self, *, drain: bool) -> int:
        checked = False
        while not self._stopping:
            try:
                if not checked:
                    await asyncio.to_thread(schema.check_url, self._database_url)
                    checked = True
                jobs = await self._intake.take()
                if not jobs and drain and (code := await self._drained()) is not None:
                    return code
                self._database_answers()
                self._start(jobs)
                if self._intake.dry or not jobs:
                    self._start(await self._intake.rest())
            except DatabaseUnavailable as error:
                self._database_away(error)
                self._intake.after_outage()
                await self._intake.pause(_RETRY_SECONDS + self._settings.poll_seconds)
        return 0

    def _start(self, jobs: Sequence[Job]) -> None:
        self._under_way.jobs += len(jobs)
        for job in jobs:
            task = asyncio.create_task(self._work(job))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._intake.nudge()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("an attempt ended in %s", type(error).__name__, exc_info=error)

    async def _drained(self) -> int | None:
        """Return the exit code once there is nothing left to wait for."""
        if self._tasks:
            return None
        if not await self._claims.any_pending():
            return 0
        return None if self._lane.paused is None else 1

    async def _heartbeats(self) -> None:
        while True:
            try:
                # Leases first: nothing that only hints hang on may keep one from being extended.
                if len(self._leases):
                    for job_id in await self._leases.extend():
                        _log.warning("job %d: lease lost", job_id)
                await self._wake.seen()
            except DatabaseUnavailable as error:
                self._database_away(error)
            except psycopg.Error as error:
                _log.warning("the database refused a heartbeat: %s", type(error).__name__)
            await asyncio.sleep(self._settings.heartbeat_seconds)

    def _patiently(
        self, run: Callable[[Sequence[Any]], Awaitable[list[Result]]]
    ) -> Callable[[Sequence[Any]], Coroutine[None, None, list[Result]]]:
        """Repeat a statement for as long as the database is away: begin and settle may be."""

        async def patient(items: Sequence[Any]) -> list[Result]:
            while True:
                try:
                    return await run(items)
                except DatabaseUnavailable as error:
                    self._database_away(error)
                    await asyncio.sleep(_RETRY_SECONDS)

        return patient

    def _database_away(self, error: DatabaseUnavailable) -> None:
        if not self._away:
            _log.warning(
                "database unavailable (%s); waiting for it, and no call starts that might outlive "
                "its lease",
                error,
            )
        self._away = True

    def _database_answers(self) -> None:
        if self._away:
            _log.warning("the database answers again")
        self._away = False

    # -- the end ----------------------------------------------------------------------------------

    async def _finish(self, services: Sequence[asyncio.Task[None]]) -> bool:
        """Let calls in flight end and settle, with the heartbeats going on; then close everything.

        Says whether all were settled: without a database they are tried for one lease, no longer.
        """
        unsettled: set[asyncio.Task[None]] = set()
        if self._tasks:
            _, unsettled = await asyncio.wait(self._tasks, timeout=self._settings.lease_seconds)
        if unsettled:
            _log.error(
                "%d attempts could not be settled; their leases will run out", len(unsettled)
            )
        for task in unsettled:
            task.cancel()
        await self._sign_off()
        for service in services:
            service.cancel()
        await asyncio.gather(*unsettled, *services, return_exceptions=True)
        await self._gateway.close()
        for connection in self._connections.values():
            await connection.close()
        return not unsettled

    async def _sign_off(self) -> None:
        try:
            async with asyncio.timeout(2):
                await self._wake.forget()
        except (OutboxError, psycopg.Error, TimeoutError) as error:
            _log.debug("could not sign off: %s", type(error).__name__)

    def _on_signals(self) -> None:
        def asked(name: str) -> None:
            if self._stopping:
                _log.warning("%s again: stopping now; leases will run out", name)
                os._exit(1)
            _log.info("%s: finishing what has begun", name)
            self.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, asked, number.name)


async def _first_end(loop: asyncio.Task[int], services: Sequence[asyncio.Task[None]]) -> int:
    """Wait for the loop; a service that ends before it has failed, and is not left unnoticed."""
    done, _ = await asyncio.wait([loop, *services], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        if task is not loop:
            task.result()
            raise OutboxError("a part of the consumer stopped by itself")
    return loop.result()


def _report(job: Job, outcome: Outcome, settled: Settled) -> None:
    if not settled.claim_held:
        _log.warning(
            "job %d (%s): its claim no longer held when it was settled%s",
            job.id,
            job.effect_key,
            "; the acceptance is written all the same" if settled.effect_written else "",
        )
    elif outcome.job_action in (JobAction.DEAD, JobAction.HOLD):
        # The provider's words, which may hold anything.
        why = legible((outcome.detail or outcome.reason or "")[:_LOGGED_CHARACTERS])
        _log.warning("job %d (%s): %s: %s", job.id, job.effect_key, outcome.job_action, why)
