"""Peers and this library in turns, on the same server, each at its best documented settings."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from benchmarks import consuming, jobs
from benchmarks.crew import Worker, crew, together
from benchmarks.drain import CONCURRENCY
from benchmarks.oracle import exactly_once
from benchmarks.ordering import Wish, committer
from benchmarks.record import ROOT, Figure, Line, ratio
from benchmarks.server import Server
from benchmarks.turns import in_turns
from shop_example.database import engine_of
from shop_example.tables import create_tables

_HERE = Path(__file__).parent
_TABLE = "CREATE TABLE bench_row (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, text text)"
#: By name: its program.
_PEERS = {
    "procrastinate": "procrastinate_peer",
    "pgqueuer, asyncpg": "pgqueuer_peer",
    "pgqueuer, psycopg": "pgqueuer_psycopg_peer",
    "oban": "oban_peer",
    "faststream-outbox": "faststream_peer",
    "graphile-worker": "graphile_worker_peer.mjs",
    "pg-boss": "pg_boss_peer.mjs",
}


def run(server: Server, *, full: bool) -> Iterator[Line]:
    """Draining no-op jobs; and the cost of a job in a one-row transaction."""
    versions = {name: _version(server, name) for name in _PEERS}
    present = {name: version for name, version in versions.items() if version}
    yield _drains(server, present, jobs_=20_000 if full else 1_000, rounds=3 if full else 1)
    for connections in (1, 4) if full else (1,):
        yield _commits(server, present, connections, 3.0 if full else 0.7, 5 if full else 2)


def _version(server: Server, name: str) -> str | None:
    """What of a peer works here, by its own word after a small drain; else a word why not."""
    try:
        with server.database(migrated=False) as url:
            return str(_drain(_PEERS[name], url, 10)["version"])
    except Absent as absent:
        print(f"{name}: skipped: {absent}", file=sys.stderr)
        return None


class Absent(Exception):
    """A peer can't be measured here."""


def _drains(server: Server, present: Mapping[str, str], *, jobs_: int, rounds: int) -> Line:
    with crew(consuming.drainer, (0, CONCURRENCY)) as workers:
        contenders: dict[str, Callable[[], float]] = {
            "outbox": partial(_our_rate, server, workers, jobs_)
        }
        for name in present:
            contenders[name] = partial(_peer_rate, server, _PEERS[name], jobs_)
        rates = in_turns(contenders, rounds)
    return Line(
        "peers",
        f"drain of {jobs_} no-op jobs",
        {name: Figure("jobs/s", values) for name, values in rates.items()},
        checked=f"each of {jobs_} jobs ran exactly once, by the handler's count",
        ratios={f"outbox / {name}": ratio(rates["outbox"], rates[name]) for name in present},
        settings={"jobs": jobs_, "rounds": rounds, **present},
        words="outbox is the only one that writes a ledger, and its time includes settling; the "
        "others' ends with the last handler's call",
    )


def _our_rate(server: Server, workers: list[Worker], count: int) -> float:
    with server.database() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            jobs.fill(connection, count)
            connection.execute("VACUUM ANALYZE outbox.job")
        seconds, calls = consuming.drain(workers, url)
        exactly_once(url, count, calls)
    return count / seconds


def _peer_rate(server: Server, program: str, count: int) -> float:
    with server.database(migrated=False) as url:
        answer = _drain(program, url, count)
    assert answer["calls"] == count, (program, answer)
    return count / float(answer["seconds"])


def _drain(program: str, url: str, count: int) -> dict[str, Any]:
    return _answers([_started(program, "drain", url, str(count))])[0]


def _commits(
    server: Server, present: Mapping[str, str], connections: int, seconds: float, rounds: int
) -> Line:
    """Time of a transaction with a job by its time without, both on the peer's own terms."""
    contenders: dict[str, Callable[[], float]] = {
        "outbox": partial(_our_commits, server, connections, seconds)
    }
    for name in ("procrastinate", "oban"):
        if name in present:
            program = _PEERS[name]
            contenders[name] = partial(_peer_commits, server, program, connections, seconds)
    costs = in_turns(contenders, rounds)
    return Line(
        "peers",
        f"one-row transaction with the job / without, in time, {connections} connection(s)",
        {name: Figure("ratio", values) for name, values in costs.items()},
        checked="each transaction was committed",
        ratios={
            f"outbox / {name}": ratio(costs["outbox"], costs[name]) for name in list(costs)[1:]
        },
        settings={"connections": connections, "seconds": seconds, "rounds": rounds},
    )


def _our_commits(server: Server, connections: int, seconds: float) -> float:
    with _rows(server) as url, crew(committer, *((url, n) for n in range(connections))) as workers:
        without = sum(together(workers, Wish("row", seconds)))
        with_job = sum(together(workers, Wish("row, job", seconds)))
    return float(without / with_job)


def _peer_commits(server: Server, program: str, connections: int, seconds: float) -> float:
    with _rows(server) as url:
        # The first one alone installs the peer.
        _answers([_started(program, "install", url, "0")])
        running = [_started(program, "commit", url, str(seconds)) for _ in range(connections)]
        answers = _answers(running)
    return float(sum(a["without"] for a in answers) / sum(a["with"] for a in answers))


@contextmanager
def _rows(server: Server) -> Iterator[str]:
    """A database with the table of rows, and the shop's, which our committer looks for."""
    with server.database() as url:
        engine = engine_of(url)
        create_tables(engine)
        engine.dispose()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(_TABLE)
        yield url


def _started(program: str, *arguments: str) -> subprocess.Popen[str]:
    command = _command(program)
    return subprocess.Popen(
        [*command, *arguments],
        cwd=ROOT,
        env=os.environ | _libpq(arguments[1]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _libpq(url: str) -> dict[str, str]:
    """Where the database is, as the peers on Node.js are told: they can't read every URL."""
    names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD"}
    where = conninfo_to_dict(url)
    return {
        variable: str(where[name])
        for name, variable in (names | {"dbname": "PGDATABASE"}).items()
        if where.get(name)
    }


def _command(program: str) -> list[str]:
    if not program.endswith(".mjs"):
        return [_python(), "-m", f"benchmarks.peers.{program}"]
    own = _HERE / "node_modules/.bin"
    node = shutil.which("node", path=f"{own}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if node is None:
        raise Absent("node is not installed")
    return [node, str(_HERE / program)]


def _python() -> str:
    """The interpreter that has the peers: the one named, that of their own environment, or ours."""
    own = _HERE / ".venv/bin/python"
    found = str(own) if own.exists() else sys.executable
    return os.environ.get("OUTBOX_BENCH_PEERS_PYTHON", found)


def _answers(programs: Sequence[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    """What they print, once all have ended.

    Raises:
        Absent: one of them can't do what it was asked for.
    """
    answers = []
    for program in programs:
        out, errors = program.communicate(timeout=900)
        if program.returncode != 0:
            last = (errors.strip().splitlines() or ["it failed"])[-1]
            raise Absent(last)
        answer: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        if "absent" in answer:
            raise Absent(answer["absent"])
        answers.append(answer)
    return answers
