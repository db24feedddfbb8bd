"""The kinds of fault: what each is, how many the long run is to have, and what tells its story."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.faults.storm import disk
from tests.faults.storm.blocks import blocks, heartbeats
from tests.faults.storm.cuts import cuts, lost_answers
from tests.faults.storm.failovers import failovers, promotions
from tests.faults.storm.full_disk import full_disks
from tests.faults.storm.history import Story
from tests.faults.storm.kills import kills, kills_under_wrong_clocks, repeats
from tests.faults.storm.lapses import OPTIONS as SHORT_MEMORY
from tests.faults.storm.lapses import lapses
from tests.faults.storm.mix import OPTIONS as MISBEHAVING
from tests.faults.storm.mix import mix
from tests.faults.storm.producers import producers
from tests.faults.storm.refusals import outages, refusals
from tests.faults.storm.shutdowns import shutdowns, terminations
from tests.faults.storm.stops import stops

#: Of the mail service, where calls are to be under way most of the time.
SLOW = ("--latency-ms", "20")
SLOW_ENOUGH = ("--latency-ms", "100")
SLOWER = ("--latency-ms", "200")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault.

    ``fault``: what is counted as one. ``aim``: how many the long run has. ``batch``: how many a
    history has. ``options``: of its mail service. ``short``: whether a short run has it, too.
    ``why_not``: why this machine can't have it, or nothing.
    """

    name: str
    fault: str
    story: Story
    aim: int
    batch: int
    options: Sequence[str] = ()
    providers: Sequence[bool] = (True, False)
    short: bool = True
    why_not: Callable[[], str | None] = lambda: None


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "kills",
            "a consumer killed (SIGKILL): before, during or after a statement, a connect, a send, "
            "a receive, or at any time; three live side by side",
            kills,
            8_000,
            100,
        ),
        Kind(
            "stops",
            "a consumer stopped (SIGSTOP) while it held a claim, until the lease had run out and "
            "others had finished, or were at work on its jobs; then SIGCONT",
            stops,
            1_000,
            40,
            SLOW,
        ),
        Kind(
            "shutdowns",
            "an immediate shutdown of PostgreSQL with jobs in flight, and its recovery",
            shutdowns,
            500,
            25,
            SLOW_ENOUGH,
        ),
        Kind(
            "lost-answers",
            "a committed statement whose client never got the answer: the shop's COMMIT, a claim "
            "that found jobs, begin, settle, a heartbeat",
            lost_answers,
            1_000,
            100,
        ),
        Kind(
            "cuts",
            "a request or an answer, of PostgreSQL or of the provider: reset, half of it and then "
            "a reset, silence, or a delay",
            cuts,
            2_000,
            150,
        ),
        Kind(
            "terminations",
            "a session of a living consumer ended by pg_terminate_backend, its five connections "
            "in turn",
            terminations,
            500,
            100,
            SLOW,
        ),
        Kind(
            "lapses",
            "an order whose first request was accepted unheard, and whose key the provider forgot "
            "before it could be tried again",
            lapses,
            300,
            60,
            SHORT_MEMORY,
            providers=(True,),
        ),
        Kind(
            "wrong-clocks",
            "a kill as above, of consumers whose wall clock is a day ahead, a day behind, frozen, "
            "or jumping",
            kills_under_wrong_clocks,
            500,
            100,
        ),
        Kind(
            "blocks",
            "a consumer that blocked its own event loop past its leases, beside others",
            blocks,
            200,
            20,
        ),
        Kind(
            "heartbeats",
            "a consumer whose heartbeats failed for longer than a lease, while calls were slow",
            heartbeats,
            100,
            8,
            SLOWER,
        ),
        Kind(
            "refusals",
            "PostgreSQL away for three to four leases: gone, in recovery, no connection left, "
            "connections not allowed, rejected by pg_hba.conf, or frozen",
            refusals,
            50,
            13,
            SLOW,
        ),
        Kind(
            "outages",
            "PostgreSQL gone for 130 s, of consumers with the settings and waits of production",
            outages,
            1,
            1,
            SLOW_ENOUGH,
            providers=(False,),
            short=False,
        ),
        Kind(
            "failovers",
            "a time in which nothing could be written: sessions turned read-only and living on, "
            "or ended, or the server restarted as a standby and promoted later",
            failovers,
            100,
            20,
            SLOW_ENOUGH,
        ),
        Kind(
            "promotions",
            "a primary shut down at once and its synchronous standby promoted, with both in "
            "everybody's URL (`target_session_attrs=read-write`)",
            promotions,
            12,
            6,
            SLOW_ENOUGH,
        ),
        Kind(
            "full-disk",
            "a filesystem filled until statements failed for it, and freed later: that of the "
            "tables, or that of the WAL, of which PostgreSQL dies",
            full_disks,
            50,
            13,
            SLOW,
            why_not=disk.why_not,
        ),
        Kind(
            "producers",
            "a producer killed (SIGKILL): before, during or after its INSERT, an enqueue, a COMMIT "
            "or a ROLLBACK, or at any time; three live side by side",
            producers,
            1_000,
            100,
        ),
        Kind(
            "repeats",
            "a kill as above, where the provider has no keys and what is unknown is sent again "
            "(`EMAIL_UNKNOWN=repeat`): an order may then be accepted once more for each consumer "
            "that died between its intent and its settling",
            repeats,
            200,
            50,
            providers=(False,),
        ),
        Kind(
            "mix",
            "kills, cut connections and shutdowns all at once, at a provider of which a tenth of "
            "all answers is a fault of its own (those are not counted)",
            mix,
            1_000,
            100,
            MISBEHAVING,
        ),
    )
}

#: What this rig does not do.
NOT_TRIED = (
    (
        "Loss of power, and a disk that lies about a sync: processes die here, the machine does "
        "not, and PostgreSQL's files are kept by the system they run on."
    ),
    (
        "A failover that loses committed transactions (an asynchronous standby), two primaries at "
        "once, a database restored from a backup: here a standby has all that was committed."
    ),
    "A jump of the database's own clock, and a machine that is suspended.",
    (
        "Silence for as long as the settings of production wait (30 s for a statement, 30 s for a "
        "call): but for `outages`, all waits are scaled down, leases are 1 or 2 s, and a delay "
        "is 0.1 to 1.2 s."
    ),
    "TLS, a pooler between consumer and database, more than one machine.",
    "A real provider. The mail service is a model of one, built from its documentation.",
    (
        "Stops, lapses, blocks, failing heartbeats, refusals, failovers, full disks and dying "
        "producers together with other kinds; a provider that is away while PostgreSQL is."
    ),
    (
        "A seed chooses which fault comes where; it does not decide how the system schedules "
        "processes. A replay repeats the plan, not each microsecond."
    ),
)
