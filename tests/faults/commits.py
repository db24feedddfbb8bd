"""The ways of producers and commands on which they are killed: each statement of a transaction.

What is true after a death depends on one thing: how many COMMITs had been sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.faults.scenarios import points_of


@dataclass(frozen=True, slots=True)
class Transaction:
    """A way of a producer or of a command.

    ``truths``: what is true in the database while no COMMIT has been sent, after the first, and so
    on. ``arguments``: those of a command. ``orders``: so many are placed at once.
    """

    name: str
    about: str
    subject: str
    steps: Sequence[str]
    truths: Sequence[str]
    arguments: Sequence[str] = ()
    orders: int = 1

    @property
    def points(self) -> list[str]:
        """Every point, in the order in which a process comes to them."""
        return points_of(self.steps)

    def truth(self, point: str) -> str:
        """What is true when the process dies at this point."""
        passed = self.points[: self.points.index(point) + 1]
        return self.truths[sum(p.startswith("COMMIT#") and p.endswith(":sent") for p in passed)]


NOTHING = "neither"
BOTH = "order and job"
PRODUCERS = (
    Transaction(
        "an order by psycopg",
        "A connection of its own, the order, its job, the commit.",
        "psycopg",
        ("connect", "BEGIN#1", "INSERT shop.orders#1", "insert_job#1", "COMMIT#1"),
        (NOTHING, BOTH),
    ),
    Transaction(
        "two orders by psycopg",
        "The same with `enqueue_many`.",
        "psycopg, many",
        ("connect", "BEGIN#1", "INSERT shop.orders#1", "insert_jobs#1", "COMMIT#1"),
        (NOTHING, BOTH),
        orders=2,
    ),
    Transaction(
        "an order by SQLAlchemy",
        "`shop_example.orders.place_order` on a session.",
        "SQLAlchemy",
        (
            "BEGIN#1",
            "SELECT shop.customers#1",
            "SELECT shop.products#1",
            "UPDATE shop.products#1",
            "INSERT shop.orders#1",
            "INSERT shop.order_lines#1",
            "insert_job#1",
            "COMMIT#1",
        ),
        (NOTHING, BOTH),
    ),
)

#: Every command looks first whether the schema is the one that it works with.
_CHECK = ("SELECT pg_tables", "SELECT outbox.schema_version", "SELECT unnest", "SELECT unnest")
_TURN = ("BEGIN", "SELECT set_config", "prune_ended_jobs", "COMMIT")


def _numbered(*names: str) -> list[str]:
    """Each with its turn, but for ``connect``."""
    turns = [f"{name}#{names[: place + 1].count(name)}" for place, name in enumerate(names)]
    return [turn.removesuffix("#1") if turn == "connect#1" else turn for turn in turns]


PRUNE = Transaction(
    "outbox prune",
    "A dead job ended long ago. Duplicates, dead and cancelled ones are cleared in transactions of"
    " their own, until one finds nothing more.",
    "outbox",
    _numbered("connect", *_CHECK, *_TURN * 4),
    ("the payload is there", "the payload is there", *["the payload is gone"] * 3),
    arguments=("prune", "--ended-before-days", "30"),
)
MIGRATE = Transaction(
    "outbox migrate",
    "An empty database.",
    "outbox",
    _numbered(
        *("connect", "SELECT pg_tables", "BEGIN", "SET LOCAL", "SET LOCAL"),
        *("SELECT pg_advisory_xact_lock", "SELECT pg_tables", "SET LOCAL"),
        *("SELECT to_regnamespace", "CREATE SCHEMA", "CREATE outbox.schema_version"),
        *("migration 0001", "INSERT outbox.schema_version", "COMMIT"),
        *_CHECK,
    ),
    ("no schema", "the whole schema"),
    arguments=("migrate",),
)
MIGRATE_AGAIN = Transaction(
    "outbox migrate, again",
    "The schema is there, and an order waits in it: there is nothing to do.",
    "outbox",
    _numbered("connect", *_CHECK[:2], *_CHECK),
    ("the whole schema",),
    arguments=("migrate",),
)
COMMANDS = (PRUNE, MIGRATE, MIGRATE_AGAIN)
#: The operator's other statements, and what only reads: nobody dies in them here.
NOT_KILLED_IN = frozenset(
    {
        "cancel_jobs", "count_held_effects", "count_jobs", "count_prunable_jobs",
        "find_delivered_jobs", "find_jobs_of_effect", "find_lacking_privileges",
        "find_old_transactions", "list_consumers", "list_effects", "list_ended_jobs", "list_jobs",
        "list_undelivered_effects", "lock_ended_jobs", "lock_held_jobs", "lock_jobs",
        "measure_job_table", "notify_consumers", "read_jobs", "read_payload", "resolve_effects",
        "retry_jobs", "show_effects",
    }
)  # fmt: skip
