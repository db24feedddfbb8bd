"""Looks a database over and says of each finding what to do about it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from outbox import schema
from outbox.connection import STATEMENT_SECONDS_MAX, host_of
from outbox.errors import OutboxError
from outbox.operator import Operator, connect, explained
from outbox.status import Status, status

OLDEST_SERVER = 140_000
#: A snapshot this old holds back vacuum for long enough to be felt.
SNAPSHOT_SECONDS = 300.0
#: Below so many dead rows a lag of vacuum means nothing.
DEAD_TUPLES_MIN = 10_000
#: A notification on one machine takes well under a millisecond.
NOTIFY_SECONDS = 2.0
#: A consumer's own connections are idle for as long as its poll and heartbeat allow.
IDLE_SESSION_SECONDS_MIN = 120.0


class Verdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: what was looked at, how it is, and the remedy where there is one."""

    name: str
    verdict: Verdict
    message: str


def examine(url: str) -> Iterator[Check]:
    """Yield the checks one by one; never raises for what it finds.

    One that fails for want of a connection or of the schema ends the list.
    """
    try:
        with connect(url) as operator:
            yield Check("connection", Verdict.OK, f"connected to {host_of(url)}")
            for name, look in _SERVER.items():
                yield _guarded(name, partial(look, operator))
            yield _guarded("notify", partial(_notify, operator, url))
            yield (found := _guarded("schema", partial(_schema, operator)))
            if found.verdict is Verdict.OK:
                yield from _tables(operator)
    except OutboxError as error:
        yield Check("connection", Verdict.FAIL, str(error))


def _guarded(name: str, look: Callable[[], Check]) -> Check:
    try:
        with explained():
            return look()
    except OutboxError as error:
        return Check(name, Verdict.FAIL, str(error))


def _tables(operator: Operator) -> Iterator[Check]:
    yield _guarded("privileges", partial(_privileges, operator))
    yield _guarded("vacuum", partial(_vacuum, operator))
    try:
        found = status(operator)
    except OutboxError as error:
        yield Check("status", Verdict.FAIL, str(error))
    else:
        yield from (look(found) for look in (_consumers, _unserved, _held, _dead))


# -- the server ---------------------------------------------------------------------------------


def _setting(operator: Operator, name: str) -> str:
    query = "SELECT current_setting(%s, true)"
    row = operator.connection.execute(query, (name,)).fetchone()
    return str(row[0]) if row and row[0] is not None else ""


def _seconds(operator: Operator, name: str) -> float:
    query = "SELECT setting::float8 / 1000 FROM pg_settings WHERE name = %s"
    row = operator.connection.execute(query, (name,)).fetchone()
    return float(row[0]) if row else 0.0


def _version(operator: Operator) -> Check:
    shown = f"PostgreSQL {_setting(operator, 'server_version')}"
    if operator.connection.info.server_version < OLDEST_SERVER:
        return Check("version", Verdict.FAIL, f"{shown}: 14 or newer is needed; upgrade the server")
    return Check("version", Verdict.OK, shown)


def _primary(operator: Operator) -> Check:
    row = operator.connection.execute("SELECT pg_is_in_recovery()").fetchone()
    if row and row[0]:
        remedy = "name the primary in OUTBOX_DATABASE_URL"
        return Check("primary", Verdict.FAIL, f"this is a read-only replica; {remedy}")
    if _setting(operator, "default_transaction_read_only") == "on":
        return Check(
            "primary",
            Verdict.WARN,
            "transactions are read-only by default for this role or database, so an application "
            "can't enqueue; ALTER ROLE ... SET default_transaction_read_only = off",
        )
    return Check("primary", Verdict.OK, "takes writes")


def _isolation(operator: Operator) -> Check:
    level = _setting(operator, "default_transaction_isolation")
    if level == "read committed":
        return Check("isolation", Verdict.OK, level)
    return Check(
        "isolation",
        Verdict.WARN,
        f"the default is {level}; consumers ask for READ COMMITTED themselves, which costs them a "
        "round trip more for each statement",
    )


def _timeouts(operator: Operator) -> Check:
    shortest = {
        "statement_timeout": STATEMENT_SECONDS_MAX,
        "lock_timeout": STATEMENT_SECONDS_MAX,
        "transaction_timeout": STATEMENT_SECONDS_MAX,
        "idle_session_timeout": IDLE_SESSION_SECONDS_MIN,
    }
    problems = [
        f"{name} = {set_to:g} s"
        for name, least in shortest.items()
        if 0 < (set_to := _seconds(operator, name)) < least
    ]
    if not problems:
        return Check("timeouts", Verdict.OK, "none that would cut a statement or a listener short")
    return Check(
        "timeouts",
        Verdict.WARN,
        f"{', '.join(problems)} may cut a claim, a settling or a listener short; set to 0 for the "
        "consumers' role (ALTER ROLE ... SET ...)",
    )


def _durability(operator: Operator) -> Check:
    names = ("fsync", "synchronous_commit", "full_page_writes")
    off = [name for name in names if _setting(operator, name) == "off"]
    if not off:
        return Check("durability", Verdict.OK, f"{', '.join(names)} are on")
    return Check(
        "durability",
        Verdict.WARN,
        f"{', '.join(off)} off: after a crash of the server committed intents may be gone, and "
        "with them the promise of never two; turn it on",
    )


@dataclass(frozen=True, slots=True)
class _Old:
    who: str
    seconds: float


def _snapshots(operator: Operator) -> Check:
    old = operator.fetch(_Old, "find_old_transactions", seconds=SNAPSHOT_SECONDS)
    if not old:
        fine = f"no transaction in sight is older than {SNAPSHOT_SECONDS:.0f} s"
        return Check("snapshots", Verdict.OK, fine)
    named = "; ".join(f"{each.who}, open for {each.seconds:.0f} s" for each in old)
    return Check(
        "snapshots",
        Verdict.WARN,
        f"vacuum can't remove what has ended since these began: {named}; end them "
        "(SELECT pg_terminate_backend(PID), ROLLBACK PREPARED 'NAME')",
    )


_SERVER: dict[str, Callable[[Operator], Check]] = {
    "version": _version,
    "primary": _primary,
    "isolation": _isolation,
    "timeouts": _timeouts,
    "durability": _durability,
    "snapshots": _snapshots,
}


def _notify(operator: Operator, url: str) -> Check:
    """Prove that a notification from one connection reaches another: not so behind some poolers."""
    channel = f"outbox_doctor_{secrets.token_hex(4)}"
    with connect(url) as listening:
        listening.connection.execute(f"LISTEN {channel}".encode())
        started = time.monotonic()
        operator.connection.execute(f"NOTIFY {channel}".encode())
        arrived = list(listening.connection.notifies(timeout=NOTIFY_SECONDS, stop_after=1))
        took = (time.monotonic() - started) * 1000
    pooler = " through a pooler" if _pooled(operator) else ""
    if arrived:
        return Check("notify", Verdict.OK, f"a notification arrives{pooler} in {took:.0f} ms")
    return Check(
        "notify",
        Verdict.WARN,
        f"no notification arrives{pooler}: consumers find new jobs at their next poll only; give "
        "them a connection that is not pooled by transaction",
    )


def _pooled(operator: Operator) -> bool:
    """A pooler gives its clients a process id of its own making."""
    row = operator.connection.execute("SELECT pg_backend_pid()").fetchone()
    return row is not None and row[0] != operator.connection.info.backend_pid


# -- the tables ---------------------------------------------------------------------------------


def _schema(operator: Operator) -> Check:
    schema.check(operator.connection)
    return Check("schema", Verdict.OK, f"version {schema.migrations()[-1].version}")


#: What each role needs; an application that only enqueues is well without the rest.
_NEEDED = {
    "enqueue": ["job INSERT", "job SELECT", "consumer SELECT", "job_position USAGE"],
    "consume": [
        "job SELECT", "job UPDATE", "job DELETE", "ended_job INSERT", "effect SELECT",
        "effect INSERT", "effect UPDATE", "consumer INSERT", "consumer UPDATE", "consumer DELETE",
    ],
    "operate": [
        "ended_job SELECT", "ended_job UPDATE", "ended_job DELETE", "job_status SELECT",
        "schema_version SELECT",
    ],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Lacking:
    name: str
    privilege: str


def _privileges(operator: Operator) -> Check:
    wanted = sorted({need for needs in _NEEDED.values() for need in needs})
    rows = operator.fetch(
        _Lacking,
        "find_lacking_privileges",
        relations=[need.split()[0] for need in wanted],
        privileges=[need.split()[1] for need in wanted],
    )
    lacking = {f"{row.name} {row.privilege}" for row in rows}
    told = [
        f"can't {purpose} (lacks {', '.join(sorted(lacking & set(needs)))})"
        for purpose, needs in _NEEDED.items()
        if lacking & set(needs)
    ]
    if not told:
        return Check("privileges", Verdict.OK, "this role may enqueue, consume and operate")
    remedy = "GRANT what it needs; a role needs only what it does"
    return Check("privileges", Verdict.WARN, f"this role {', '.join(told)}; {remedy}")


@dataclass(frozen=True, slots=True)
class _JobTable:
    dead: int
    live: int
    megabytes: int
    autovacuum: bool


def _vacuum(operator: Operator) -> Check:
    table = operator.fetch(_JobTable, "measure_job_table")[0]
    shown = f"outbox.job has {table.dead} dead rows beside {table.live}, {table.megabytes} MB"
    if not table.autovacuum:
        return Check("vacuum", Verdict.WARN, f"autovacuum is off; turn it on ({shown})")
    if table.dead > max(DEAD_TUPLES_MIN, table.live):
        remedy = "look for old transactions (snapshots, above), then VACUUM outbox.job"
        return Check("vacuum", Verdict.WARN, f"vacuum does not keep up: {shown}; {remedy}")
    return Check("vacuum", Verdict.OK, shown)


# -- the work -----------------------------------------------------------------------------------


def _consumers(found: Status) -> Check:
    if found.consumers:
        return Check("consumers", Verdict.OK, f"{len(found.consumers)} seen lately")
    return Check("consumers", Verdict.WARN, "none was seen lately; start one (email-consumer run)")


def _unserved(found: Status) -> Check:
    topics = [topic for topic, counts in found.topics.items() if counts.unserved]
    if not topics:
        return Check("unserved", Verdict.OK, "every ready job's topic is served")
    return Check(
        "unserved",
        Verdict.WARN,
        f"{found.total.unserved} ready jobs have topics that no consumer serves: "
        f"{', '.join(topics)}; start a consumer that does",
    )


def _held(found: Status) -> Check:
    if not found.held_effects:
        return Check("held", Verdict.OK, "nothing waits for a person")
    return Check(
        "held",
        Verdict.WARN,
        f"{found.held_effects} effects may have been sent and wait for a person; "
        "see: outbox effects list --state held",
    )


def _dead(found: Status) -> Check:
    if not found.total.dead:
        return Check("dead", Verdict.OK, "no job ended without its effect")
    see = "see: outbox jobs --state dead"
    return Check("dead", Verdict.WARN, f"{found.total.dead} jobs ended without their effect; {see}")
