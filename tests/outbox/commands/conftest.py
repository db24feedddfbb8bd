"""The ``outbox`` command in this process, at a database with scenes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from outbox.commands.app import app
from outbox.operator import Operator, connect
from tests.outbox.commands.scenes import Scene

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import psycopg


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object that it printed."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The objects that it printed, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


Command = Callable[..., Answer]


@pytest.fixture
def command_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Runs ``outbox`` with these arguments, wherever the settings point."""
    monkeypatch.chdir(tmp_path)  # no .env of a developer

    def run(*arguments: object) -> Answer:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Answer(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def command(
    command_anywhere: Command, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Runs ``outbox`` with these arguments at the test's database."""
    monkeypatch.setenv("OUTBOX_DATABASE_URL", database_url)
    return command_anywhere


@pytest.fixture
def scene(database_url: str, connection: psycopg.Connection[Any]) -> Scene:
    """The test's database and a consumer in it."""
    return Scene(database_url, connection)


@pytest.fixture
def operator(database_url: str) -> Iterator[Operator]:
    """A person's connection to the test's database."""
    with connect(database_url) as operator:
        yield operator
