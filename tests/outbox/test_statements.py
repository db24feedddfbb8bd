"""The SQL of the library: each file loads, is called with what it asks for, can be explained."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
import sqlalchemy
from psycopg import sql
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH
from psycopg.rows import dict_row

from outbox import NewJob, Outbox, enqueue, statements
from outbox.caller import Insert
from tests.databases import Databases

PACKAGE = Path(__file__).parents[2] / "outbox"
NAMES = sorted(path.stem for path in (PACKAGE / "sql").glob("*.sql"))

VERBS = (
    "begin", "cancel", "claim", "count", "extend", "find", "forget", "insert", "list", "lock",
    "measure", "note", "notify", "promote", "prune", "read", "release", "reopen", "resolve",
    "retry", "settle", "show",
)  # fmt: skip


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> Iterator[str]:
    """One database for this file: nothing here changes a row that another test looks at."""
    url = databases.create_migrated()
    yield url
    databases.drop(url)


# -- loading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_statement_loads_and_says_why_it_is_there(name: str) -> None:
    """Named by a verb and a noun, headed by a comment that does not go over the wire."""
    source = (PACKAGE / "sql" / f"{name}.sql").read_text()
    assert re.fullmatch(rf"({'|'.join(VERBS)})(_[a-z]+)+", name)
    assert source.startswith("-- ")
    text = statements.text(name)
    assert text
    assert "--" not in text
    assert ";" not in re.sub(r"'[^']*'", "''", text), "one statement a file"


@pytest.mark.parametrize("name", NAMES)
def test_every_reader_of_a_statement_sees_the_same_parameters(name: str) -> None:
    """psycopg, SQLAlchemy and psql's variables agree on what is one."""
    parameters = statements.parameters(name)
    assert set(re.findall(r"%\(([a-z_]+)\)b", statements.psycopg(name))) == parameters
    assert sqlalchemy.text(statements.text(name)).compile().params.keys() == parameters
    assert not re.search(r"(?<!:):[A-Za-z_]", re.sub(r":[a-z_]+\b", "", statements.text(name)))


def test_a_percent_sign_and_a_cast_are_no_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """What looks a little like one is left as it is; a percent sign is doubled for psycopg."""
    query = "SELECT '5%' LIKE :pattern, x::text, '12:30', a[1:2] FROM t WHERE y = :y_"
    monkeypatch.setattr(statements, "text", lambda _: query)
    assert statements.parameters.__wrapped__("any") == {"pattern", "y_"}
    assert statements.psycopg.__wrapped__("any") == (
        "SELECT '5%%' LIKE %(pattern)b, x::text, '12:30', a[1:2] FROM t WHERE y = %(y_)b"
    )


@pytest.mark.parametrize("name", NAMES)
def test_times_are_hours_and_seconds_never_days_of_a_calendar(name: str) -> None:
    """A day of a session's time zone has 23 hours now and then, and a month anything (case-65)."""
    literals = re.findall(r"'([^']*)'", statements.text(name))
    assert not [text for text in literals if re.search(r"\d\s*(day|week|mon|year)", text)]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_the_age_of_an_open_try_is_the_same_in_every_time_zone(
    connection: psycopg.Connection[Any], zone: str
) -> None:
    """It is held against the provider's memory; 250 days have a change of clocks in them."""
    with connection.transaction(force_rollback=True):
        connection.execute(f"SET LOCAL TimeZone = '{zone}'".encode())
        connection.execute(
            "INSERT INTO outbox.effect (effect_key, job_id, claim_version, attempted_by, topic,"
            " payload_fingerprint, provider, account, wire_key, open_since, requests_sent,"
            " first_attempt_at, last_attempt_at)"
            " SELECT 'k', 1, 1, 'me', 'topic', sha256(''), 'p', 'a', 'k',"
            " now() - interval '6000 hours', 1, now(), now()"
        )
        with connection.cursor(row_factory=dict_row) as cursor:
            query = statements.psycopg("read_effects").encode()
            row = cursor.execute(query, {"job_ids": [1], "effect_keys": ["k"]}).fetchone()
    assert row is not None
    assert 0 <= row["open_seconds"] - 6000 * 3600 < 60


def test_a_statement_that_is_not_there_is_an_error() -> None:
    """A misspelt name does not become an empty statement."""
    with pytest.raises(FileNotFoundError):
        statements.text("settle_everything")


# -- calling -------------------------------------------------------------------------------------


class CallSite(NamedTuple):
    """Where the package runs a statement, and with what."""

    place: str
    statement: str
    parameters: frozenset[str]
    row_class: type | None


def strings(node: ast.AST) -> set[str]:
    """The names of statements that are written below a node."""
    found = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
    return {name for name in found if isinstance(name, str) and name in NAMES}


def dict_keys(node: ast.expr, function: ast.AST) -> frozenset[str]:
    """The keys of a dict that is written here, or that a name of this function stands for."""
    if isinstance(node, ast.Name):
        for n in ast.walk(function):
            if isinstance(n, ast.Assign | ast.AnnAssign) and isinstance(n.value, ast.Dict):
                targets = n.targets if isinstance(n, ast.Assign) else [n.target]
                if any(isinstance(t, ast.Name) and t.id == node.id for t in targets):
                    node = n.value
                    break
    assert isinstance(node, ast.Dict), ast.unparse(node)
    return frozenset(str(key.value) for key in node.keys if isinstance(key, ast.Constant))


def call_sites_of(path: Path) -> Iterator[CallSite]:
    """The calls ``x.fetch(Row, "name", key=...)``, ``x.execute("name", key=...)`` and
    ``x.execute(statements.psycopg("name"), {...})`` of one module.
    """
    module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    tree = ast.parse(path.read_text())
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        for call in ast.walk(function):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                continue
            if call.func.attr not in {"fetch", "execute"}:
                continue
            place = f"{path.relative_to(PACKAGE)}:{call.lineno}"
            if "statements.psycopg" in ast.unparse(call):
                for name in strings(call):
                    yield CallSite(place, name, dict_keys(call.args[1], function), None)
                continue
            row_class = None
            if call.func.attr == "fetch" and isinstance(call.args[0], ast.Name):
                row_class = getattr(importlib.import_module(module), call.args[0].id, None)
            for name in names_of(call, function):
                keywords = frozenset(k.arg for k in call.keywords if k.arg)
                assert len(keywords) == len(call.keywords), f"{place}: ** hides the parameters"
                yield CallSite(place, name, keywords, row_class)


def names_of(call: ast.Call, function: ast.AST) -> set[str]:
    """The statement that a call names, or all that the variable in its place may name."""
    position = 1 if isinstance(call.func, ast.Attribute) and call.func.attr == "fetch" else 0
    if len(call.args) <= position:
        return set()
    argument = call.args[position]
    if isinstance(argument, ast.Constant):
        return {argument.value} & set(NAMES) if isinstance(argument.value, str) else set()
    if not isinstance(argument, ast.Name):
        return set()
    found: set[str] = set()
    for n in ast.walk(function):
        if isinstance(n, ast.For) and argument.id in ast.unparse(n.target):
            found |= strings(n.iter)
        if isinstance(n, ast.Assign) and any(ast.unparse(t) == argument.id for t in n.targets):
            found |= strings(n.value)
    return found


@cache
def call_sites() -> tuple[CallSite, ...]:
    """All of them, each once (a function inside another is walked twice)."""
    found = {site for path in sorted(PACKAGE.rglob("*.py")) for site in call_sites_of(path)}
    return tuple(sorted(found, key=lambda site: (site.statement, site.place)))


#: Those that an application runs, on its own connection: ``enqueue`` and ``enqueue_many``.
PRODUCERS = ("insert_job", "insert_jobs")


@pytest.mark.parametrize("name", PRODUCERS)
def test_an_enqueue_gives_exactly_the_parameters(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever kind of connection the statement goes to."""
    seen: list[Insert] = []

    def insert(_: object, wish: Insert) -> list[int]:
        seen.append(wish)
        return [1]

    monkeypatch.setattr(enqueue, "insert", insert)
    anybody: Any = object()
    Outbox().enqueue(anybody, "t", {}, effect_key="e")
    Outbox().enqueue_many(anybody, "t", [NewJob(payload={}, effect_key="e")])
    (wish,) = [wish for wish in seen if wish.statement == name]
    (given,) = wish.parameters
    assert set(given) == statements.parameters(name)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in PRODUCERS])
def test_a_statement_is_called_with_exactly_its_parameters(name: str) -> None:
    """Found in the code of the package: no statement is orphaned, no argument is ignored."""
    sites = [site for site in call_sites() if site.statement == name]
    assert sites, f"nothing calls {name}"
    for site in sites:
        assert site.parameters == statements.parameters(name), site.place


def columns(connection: psycopg.Connection[Any], name: str) -> list[str]:
    """The columns that the server says a statement returns."""
    query, _ = numbered(name)
    prepared = connection.pgconn.prepare(b"described", query.encode())
    assert prepared.status == psycopg.pq.ExecStatus.COMMAND_OK, prepared.error_message.decode()
    described = connection.pgconn.describe_prepared(b"described")
    connection.execute("DEALLOCATE described")
    found = (described.fname(number) for number in range(described.nfields))
    return [column.decode() for column in found if column]


def numbered(name: str) -> tuple[str, list[str]]:
    """A statement with $1, $2 ... and the parameters that they stand for, in order."""
    order: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in order:
            order.append(match[1])
        return f"${order.index(match[1]) + 1}"

    query = re.sub(r"%\(([a-z_]+)\)b", number, statements.psycopg(name))
    return query.replace("%%", "%"), order


def test_every_row_class_has_the_columns_that_its_statement_returns(
    connection: psycopg.Connection[Any],
) -> None:
    """No column is left out by name, none is there that nobody reads."""
    checked = 0
    for site in call_sites():
        if site.row_class is not None and is_dataclass(site.row_class):
            names = {field.name for field in fields(site.row_class)}
            assert set(columns(connection, site.statement)) == names, site
            checked += 1
    assert checked >= 10


# -- explaining ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_statement_can_be_given_to_explain(
    connection: psycopg.Connection[Any], name: str
) -> None:
    """As it ships, on the migrated schema, whatever its parameters are."""
    query = f"EXPLAIN {statements.psycopg(name)}"
    plan = connection.execute(query.encode(), dict.fromkeys(statements.parameters(name))).fetchall()
    assert "cost=" in str(plan[0])


@pytest.fixture(scope="module")
def busy(databases: Databases) -> Iterator[psycopg.Connection[Any]]:
    """A database with 10,000 ready jobs in three topics and two priorities, and their effects."""
    url = databases.create_migrated()
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        connection.execute(
            "INSERT INTO outbox.job"
            " (id, topic, priority, position, effect_key, payload, payload_fingerprint)"
            " SELECT id, 'topic-' || id % 3, id % 2, id, 'k-' || id, '{}', sha256('')"
            " FROM generate_series(1, 10000) AS id"
        )
        connection.execute(
            "INSERT INTO outbox.effect (effect_key, job_id, claim_version, attempted_by, topic,"
            " payload_fingerprint, provider, account, wire_key, open_since, requests_sent,"
            " first_attempt_at, last_attempt_at)"
            " SELECT 'k-' || id, id, 1, 'me', 'topic', sha256(''), 'p', 'a', 'k-' || id,"
            " clock_timestamp(), 1, clock_timestamp(), clock_timestamp()"
            " FROM generate_series(1, 10000) AS id"
        )
        connection.execute("ANALYZE outbox.job, outbox.effect")
        yield connection
    databases.drop(url)


MANY = 50
IDS = list(range(100, 100 + MANY))
VALUES: dict[str, Any] = {
    "account": "a",
    "claim_versions": [0] * MANY,
    "claimed_by": "me",
    "effect_keys": [f"k-{number}" for number in IDS],
    "floors": [1] * 6,
    "job_ids": IDS,
    "lease_seconds": 60.0,
    "limit": 50,
    "outcomes": json.dumps(
        [
            {
                "job_id": number,
                "claim_version": 0,
                "effect_key": f"k-{number}",
                "requests_seen": 1,
                "effect_state": "delivered",
                "nothing_open": True,
                "message_id": "m",
                "job_action": "done",
                "refund": False,
                "delay_seconds": 1.0,
                "reason": "reason",
                "detail": "detail",
            }
            for number in IDS
        ]
    ),
    "priorities": [0, 0, 0, 1, 1, 1],
    "provider": "p",
    "request_hashes": [b"h"] * MANY,
    "requests": [b"request"] * MANY,
    "requests_seen": [1] * MANY,
    "topics": ["topic-0", "topic-1", "topic-2"] * 2,
    "wire_keys": [f"k-{number}" for number in IDS],
}


def test_psycopg_remembers_how_each_statement_is_read() -> None:
    """Of longer queries psycopg keeps nothing, and reads them anew each time."""
    lengths = {name: len(statements.psycopg(name).encode()) for name in NAMES}
    longer = {name for name, length in lengths.items() if length > MAX_CACHED_STATEMENT_LENGTH}
    assert longer == set()


HOT = (
    "begin_effects", "claim_crashed_job", "claim_jobs", "extend_leases", "find_crashed_job",
    "list_lanes", "promote_due_jobs", "read_effects", "release_held_jobs", "release_ordered_jobs",
    "reopen_effects", "settle_attempts",
)  # fmt: skip
PLANS = ("force_custom_plan", "force_generic_plan")


def plan(connection: psycopg.Connection[Any], name: str, mode: str) -> list[dict[str, Any]]:
    """The nodes of the plan for a statement that psycopg has prepared, as it does after a while."""
    query, order = numbered(name)
    arguments = sql.SQL(", ").join(sql.Literal(VALUES[parameter]) for parameter in order)
    connection.execute(f"SET plan_cache_mode = {mode}".encode())
    connection.execute(f"PREPARE hot AS {query}".encode())
    try:
        explained = sql.SQL("EXPLAIN (FORMAT JSON) EXECUTE hot({})").format(arguments)
        row = connection.execute(explained).fetchone()
    finally:
        connection.execute("DEALLOCATE hot")
    assert row is not None
    return list(nodes(row[0][0]["Plan"]))


def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A node of a plan and all below it."""
    yield node
    for child in node.get("Plans", ()):
        yield from nodes(child)


#: An index of the jobs that stand in a line and of nothing else: their heads are looked for in it.
READ_WHOLE = {"job_blocked"}


def reads_everything(node: dict[str, Any]) -> bool:
    """Whether a node of a plan goes through all of a table, or of an index."""
    if "Index" in node["Node Type"]:
        bounded = {"Index Cond", "Filter"} & node.keys()
        return not bounded and node["Index Name"] not in READ_WHOLE
    return node["Node Type"] in {"Seq Scan", "Bitmap Heap Scan"}


@pytest.mark.parametrize("mode", PLANS)
@pytest.mark.parametrize("name", HOT)
def test_no_hot_statement_reads_a_whole_table(
    busy: psycopg.Connection[Any], name: str, mode: str
) -> None:
    """Each goes by an index, whether PostgreSQL plans for the values or for any values."""
    for node in plan(busy, name, mode):
        if node.get("Relation Name") in {"job", "effect"}:
            assert not reads_everything(node), json.dumps(node, indent=1)


@pytest.mark.parametrize("mode", PLANS)
@pytest.mark.parametrize("name", ["claim_jobs", "claim_crashed_job", "find_crashed_job"])
def test_a_claim_goes_along_the_ready_index_and_sorts_nothing(
    busy: psycopg.Connection[Any], name: str, mode: str
) -> None:
    """Each topic and priority is a range of the index, read in its order from the floor."""
    found = plan(busy, name, mode)
    scans = [node for node in found if node.get("Index Name") == "job_ready"]
    assert len(scans) == 1
    floor = ".*position" if name == "claim_jobs" else ""
    assert re.search(rf"topic.*priority{floor}", scans[0]["Index Cond"])
    assert not [node for node in found if "Sort" in node["Node Type"]]


def test_a_claim_touches_no_more_of_the_table_than_it_takes(
    busy: psycopg.Connection[Any],
) -> None:
    """Fifty of ten thousand jobs, from a floor in the middle: some hundred pages, not all."""
    query = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statements.psycopg('claim_jobs')}"
    values = {name: VALUES[name] for name in statements.parameters("claim_jobs")}
    values |= {"floors": [5000] * 6}
    with busy.transaction(force_rollback=True):
        row = busy.execute(query.encode(), values).fetchone()
    assert row is not None
    top = row[0][0]["Plan"]
    assert top["Actual Rows"] == 50
    scan = next(node for node in nodes(top) if node.get("Index Name") == "job_ready")
    assert scan["Actual Rows"] * scan["Actual Loops"] <= 60


# -- building ------------------------------------------------------------------------------------

SQL_TEXT = re.compile(
    r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|SET|RESET|LISTEN|UNLISTEN|NOTIFY|WITH|LOCK"
    r"|TRUNCATE|GRANT|REVOKE|COPY|CALL|DO|BEGIN|COMMIT|ROLLBACK|SAVEPOINT|EXPLAIN|PREPARE|EXECUTE"
    r"|DEALLOCATE|VACUUM|ANALYZE)\b"
)

#: What is put together all the same, and why that is no way in for anybody's text.
REASONED = {
    ("doctor.py", "LISTEN "): "a channel of our own making, which takes no parameter",
    ("doctor.py", "NOTIFY "): "the same channel",
    ("embedded.py", "CREATE DATABASE "): "a constant name, and CREATE DATABASE takes no parameter",
    ("schema.py", "SET LOCAL lock_timeout = 's'"): "a constant number; SET takes no parameter",
}


def built_texts(path: Path) -> Iterator[str]:
    """The texts that a module puts together, without what is put in."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
        elif builds_text(node):
            constants = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
            yield from (text for text in constants if isinstance(text, str))


def builds_text(node: ast.AST) -> bool:
    """Whether this may put a text together from others."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Mod | ast.Add)
    methods = {"format", "format_map", "join", "replace", "removeprefix"}
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in methods
    )


def test_no_sql_is_put_together_from_texts() -> None:
    """No f-string, %, + or format makes a statement, but for the few that have a reason."""
    found = {
        (str(path.relative_to(PACKAGE)), text)
        for path in PACKAGE.rglob("*.py")
        for text in built_texts(path)
        if SQL_TEXT.match(text)
    }
    assert found == REASONED.keys()


@pytest.mark.parametrize(
    "code",
    [
        'f"SELECT {x}"',
        'f"  DELETE FROM {t} WHERE a = 1"',
        '"UPDATE t SET a = %s" % x',
        '"DROP TABLE " + name',
        '"INSERT INTO {} VALUES (1)".format(t)',
        '"SELECT a, b".replace("a", x)',
    ],
)
def test_the_search_for_such_texts_finds_them(tmp_path: Path, code: str) -> None:
    """Else the test above would prove nothing."""
    (tmp_path / "module.py").write_text(f"query = {code}\n")
    assert any(SQL_TEXT.match(text) for text in built_texts(tmp_path / "module.py"))
