"""What goes wrong before a command begins: one clear line, the right exit code, no secret."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from outbox import embedded
from outbox.errors import ConfigurationError
from tests.databases import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.outbox.commands.conftest import Command
    from tests.outbox.commands.scenes import Scene

COMMANDS = [
    ("status",), ("jobs",), ("jobs", "show", "1"), ("effects", "list"), ("effects", "show", "k"),
    ("effects", "resolve", "k", "--delivered"), ("retry", "1"), ("cancel", "1"), ("prune",),
]  # fmt: skip


@pytest.mark.parametrize("arguments", [*COMMANDS, ("migrate",)], ids=" ".join)
def test_no_database_is_a_line(
    command_anywhere: Command, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """Exit code 1; where it points is told, the password is not."""
    monkeypatch.setenv("OUTBOX_DATABASE_URL", "postgresql://joe:s3cret@127.0.0.1:1/shop")
    answer = command_anywhere(*arguments)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.count("\n") == 1
    assert "can't connect to the database" in answer.err
    assert "s3cret" not in answer.err


def test_no_schema_is_a_line(
    command_anywhere: Command, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command: exit code 1, and the command that makes it."""
    monkeypatch.setenv("OUTBOX_DATABASE_URL", empty_database_url)
    for arguments in COMMANDS:
        answer = command_anywhere(*arguments)
        assert (answer.code, answer.out) == (1, ""), arguments
        assert answer.err.count("\n") == 1
        assert "run: outbox migrate" in answer.err


@pytest.mark.parametrize(
    "url",
    [
        "mysql://joe:s3cret@localhost/shop",
        "postgresql://joe:s3cret@localhost:port/shop",
        "postgresql://joe:s3/cret@localhost/shop",
        "postgresql://joe:12/s3cret@localhost/shop",
        "s3cret",
    ],
)
def test_a_wrong_url_is_wrong_use_and_not_shown(
    command_anywhere: Command, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """Exit code 2, the setting's name, and nothing of its value."""
    monkeypatch.setenv("OUTBOX_DATABASE_URL", url)
    answer = command_anywhere("status")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("outbox: OUTBOX_DATABASE_URL: ")
    assert answer.err.count("\n") == 1
    assert "s3" not in answer.err
    assert "cret" not in answer.err


def test_wrong_settings_are_wrong_use(
    command_anywhere: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, with both settings that contradict each other."""
    monkeypatch.setenv("OUTBOX_LEASE_SECONDS", "10")
    monkeypatch.setenv("OUTBOX_HEARTBEAT_SECONDS", "9")
    answer = command_anywhere("status")
    assert (answer.code, answer.out) == (2, "")
    assert "OUTBOX_HEARTBEAT_SECONDS" in answer.err
    assert "OUTBOX_LEASE_SECONDS" in answer.err


def test_a_role_that_may_not_read_is_told_so(
    command: Command, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1, with what is denied and who can tell more."""
    monkeypatch.setenv("OUTBOX_DATABASE_URL", as_role(database_url, "pg_monitor"))
    answer = command("status")
    assert (answer.code, answer.out) == (1, "")
    assert "permission denied" in answer.err
    assert "outbox doctor" in answer.err


def test_without_a_database_the_embedded_one_is_started(
    command: Command, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With OUTBOX_DATABASE_URL unset; where there is none, its remedy is a settings matter."""
    monkeypatch.delenv("OUTBOX_DATABASE_URL")
    monkeypatch.setattr(embedded, "start", lambda: database_url)
    assert command("status", "--json").code == 0

    def refuse() -> str:
        raise ConfigurationError("no embedded PostgreSQL here; set OUTBOX_DATABASE_URL")

    monkeypatch.setattr(embedded, "start", refuse)
    answer = command("status")
    assert answer.code == 2
    assert answer.err == "outbox: no embedded PostgreSQL here; set OUTBOX_DATABASE_URL\n"


def test_without_the_extra_a_line_names_it(tmp_path: Path) -> None:
    """An application that only enqueues has the script, but not what it needs."""
    for missing in ("typer", "rich", "psycopg", "pydantic_settings"):
        program = (
            f"import sys; sys.modules[{missing!r}] = None\nfrom outbox.commands import main; main()"
        )
        ended = _python(tmp_path, "-c", program)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert f"{missing} is not installed" in ended.stderr
        assert "outbox-effects[consumer]" in ended.stderr
        assert ended.stderr.count("\n") == 1


def test_the_module_is_the_command(tmp_path: Path) -> None:
    """``python -m outbox`` runs without a terminal, a database or a home."""
    ended = _python(tmp_path, "-m", "outbox", "--help")
    assert ended.returncode == 0
    for name in ("migrate", "status", "doctor", "jobs", "effects", "retry", "cancel", "prune"):
        assert f"  {name} " in ended.stdout
    assert _python(tmp_path, "-m", "outbox", "--version").stdout.startswith("outbox-effects ")
    assert _python(tmp_path, "-m", "outbox", "dance").returncode == 2


def test_a_terminal_that_knows_ascii_only_gets_no_traceback(scene: Scene, tmp_path: Path) -> None:
    """A character that it can't show is written as its number."""
    scene.enqueue("k", ordering_key="größe")
    scene.sql("UPDATE outbox.job SET last_error = 'größe'")
    ended = _python(
        tmp_path, "-m", "outbox", "jobs", OUTBOX_DATABASE_URL=scene.url, PYTHONIOENCODING="ascii"
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert r"gr\xf6\xdfe" in ended.stdout


def as_role(url: str, role: str) -> str:
    """The same URL for sessions that act as another role."""
    return f"{url}{'&' if '?' in url else '?'}options=-crole%3D{role}"


def _python(cwd: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
