"""``outbox migrate``: once, twice, two at once, and a schema from the future."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from outbox import schema
from tests.outbox.commands.test_errors import as_role

if TYPE_CHECKING:
    from tests.outbox.commands.conftest import Command
    from tests.outbox.commands.scenes import Scene


@pytest.fixture
def empty(
    command_anywhere: Command, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> Command:
    """The command at an empty database."""
    monkeypatch.setenv("OUTBOX_DATABASE_URL", empty_database_url)
    return command_anywhere


def test_an_empty_database_is_brought_to_this_version(empty: Command) -> None:
    """It says what it applied, and then that there is nothing to do."""
    first = empty("migrate")
    assert (first.code, first.out) == (0, "applied 0001 jobs_and_ledger\n")
    version = schema.migrations()[-1].version
    again = empty("migrate")
    assert again.out == f"nothing to do: the schema has version {version}\n"
    assert empty("migrate", "--json").json == {"applied": [], "version": version}
    assert empty("status").code == 0


def test_two_at_once_apply_each_step_once(empty: Command, empty_database_url: str) -> None:
    """One waits for the other and finds nothing to do."""
    with ThreadPoolExecutor() as pool:
        applied = list(pool.map(lambda _: schema.migrate(empty_database_url), range(2)))
    assert sorted(map(len, applied)) == [0, len(schema.migrations())]
    assert empty("status").code == 0


def test_a_newer_schema_is_refused_by_every_command(command: Command, scene: Scene) -> None:
    """Exit code 1 and what to do; nothing is touched."""
    scene.sql("INSERT INTO outbox.schema_version (version, name, checksum) VALUES (999, 'x', 'y')")
    for arguments in (("migrate",), ("status",), ("effects", "list")):
        answer = command(*arguments)
        assert (answer.code, answer.out) == (1, "")
        assert "version 999" in answer.err
        assert "update this program" in answer.err


def test_a_role_that_may_not_create_is_told_so(
    empty: Command, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback where the role may not create anything, but the server's word."""
    monkeypatch.setenv("OUTBOX_DATABASE_URL", as_role(empty_database_url, "pg_monitor"))
    answer = empty("migrate")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.count("\n") == 1
    assert "permission denied" in answer.err
