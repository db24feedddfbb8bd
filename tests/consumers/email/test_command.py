"""The command as people run it: a process of its own, its lines and its exit codes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from consumers.email.cli import cli
from outbox import Outbox
from tests.consumers.email.conftest import API_KEY, Serve
from tests.consumers.email.servers import ACCEPTED, MESSAGE_ID, http, says, silence

ROOT = Path(__file__).parents[3]
APP = """
from consumers.email import Emails, Message
emails = Emails()
@emails.topic("email.hello")
def hello(payload: dict) -> Message:
    return Message(payload["email"], f"Hello {payload['id']}", "Hi")
"""


SETTINGS = {
    "EMAIL_PROVIDER": "resend",
    "EMAIL_API_KEY": API_KEY,
    "EMAIL_FROM": "Shop <orders@shop.example>",
    "EMAIL_APP": "little_shop:emails",
    "OUTBOX_POLL_SECONDS": "0.1",
}


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    lines: str


Start = Callable[..., Any]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts the command in a folder with an application; ends what still runs."""
    (tmp_path / "little_shop.py").write_text(APP)
    processes = []

    async def run(*arguments: str, **settings: str) -> asyncio.subprocess.Process:
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
        given = environment | SETTINGS | settings
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "consumers.email.command", *arguments,
            cwd=tmp_path, env=given, stderr=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        processes.append(process)
        return process

    yield run
    for process in processes:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ended(process: asyncio.subprocess.Process) -> Ended:
    """Wait for the end."""
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return Ended(process.returncode or 0, (out + err).decode())


def enqueue(connection: psycopg.Connection, *numbers: int) -> None:
    """Enqueue e-mails."""
    outbox = Outbox()
    with connection.transaction():
        for number in numbers:
            outbox.enqueue(
                connection,
                "email.hello",
                {"id": number, "email": "jane@example.com"},
                effect_key=f"email-hello-{number}",
            )


async def test_every_job_is_one_request_and_a_second_run_makes_none(
    start: Start, serve: Serve, connection: psycopg.Connection, database_url: str
) -> None:
    """--drain: each with its own key, then nothing is left, exit 0."""
    server = await serve(says(ACCEPTED))
    enqueue(connection, *range(1, 6))
    for _ in range(2):
        end = await ended(
            await start(
                "run",
                "--drain",
                "--timeout",
                "50",
                OUTBOX_DATABASE_URL=database_url,
                EMAIL_API_URL=server.url,
            )
        )
        assert end.code == 0, end.lines
    keys = sorted(
        line.split()[1]
        for request in server.requests
        for line in request.split(b"\r\n")
        if line.lower().startswith(b"idempotency-key:")
    )
    assert keys == [f"email-hello-{number}".encode() for number in range(1, 6)]
    ids = connection.execute("SELECT DISTINCT state, provider_message_id FROM outbox.effect")
    assert ids.fetchall() == [("delivered", MESSAGE_ID)]


async def test_the_first_line_says_what_is_served_and_where(
    start: Start, serve: Serve, database_url: str
) -> None:
    """App, topics, database host, provider host and namespace; neither key nor password."""
    server = await serve(says(ACCEPTED))
    end = await ended(
        await start(
            "run",
            "--app",
            "little_shop:emails",
            "--drain",
            EMAIL_APP="",
            EMAIL_API_URL=server.url,
            OUTBOX_DATABASE_URL=database_url,
            EMAIL_KEY_NAMESPACE="stage",
        )
    )
    line = end.lines.splitlines()[0]
    assert "little_shop:emails serves email.hello; database " in line
    assert f"provider resend at 127.0.0.1:{server.port}; namespace stage" in line
    assert API_KEY not in end.lines


async def test_a_real_provider_without_a_namespace_is_warned_of(
    start: Start, database_url: str
) -> None:
    """With nothing to do, nothing is sent; the warning stands all the same."""
    end = await ended(await start("run", "--drain", OUTBOX_DATABASE_URL=database_url))
    assert end.code == 0, end.lines
    assert "WARNING EMAIL_KEY_NAMESPACE is not set" in end.lines
    assert "provider resend at api.resend.com; namespace none" in end.lines


async def test_a_misconfigured_account_ends_a_drain_with_one(
    start: Start, serve: Serve, connection: psycopg.Connection, database_url: str
) -> None:
    """The job is there still; the lane is paused, and that is said."""
    server = await serve(says(http(401, b'{"name":"missing_api_key","message":"Missing"}')))
    enqueue(connection, 1)
    end = await ended(
        await start(
            "run",
            "--drain",
            "--timeout",
            "50",
            OUTBOX_DATABASE_URL=database_url,
            EMAIL_API_URL=server.url,
        )
    )
    assert end.code == 1, end.lines
    assert "missing_api_key" in end.lines
    assert connection.execute("SELECT count(*) FROM outbox.job").fetchall() == [(1,)]


async def test_a_stop_lets_the_call_in_flight_end(
    start: Start, serve: Serve, connection: psycopg.Connection, database_url: str
) -> None:
    """SIGTERM while the provider thinks: the answer is waited for and written, exit 0."""
    release = asyncio.Event()

    async def slow(reader: Any, writer: Any, request: bytes) -> None:
        await release.wait()
        await says(ACCEPTED)(reader, writer, request)

    server = await serve(slow)
    enqueue(connection, 1)
    process = await start("run", OUTBOX_DATABASE_URL=database_url, EMAIL_API_URL=server.url)
    while not server.requests:
        server.arrival.clear()
        await asyncio.wait_for(server.arrival.wait(), 30)
    process.send_signal(signal.SIGTERM)
    release.set()
    assert (await ended(process)).code == 0
    states = connection.execute("SELECT state, requests_sent FROM outbox.effect").fetchall()
    assert states == [("delivered", 1)]


async def test_a_drain_gives_up_after_its_timeout(
    start: Start, serve: Serve, connection: psycopg.Connection, database_url: str
) -> None:
    """Exit 1."""
    server = await serve(silence)
    enqueue(connection, 1)
    end = await ended(
        await start(
            "run",
            "--drain",
            "--timeout",
            "1",
            OUTBOX_DATABASE_URL=database_url,
            EMAIL_API_URL=server.url,
            EMAIL_TIMEOUT_SECONDS="0.5",
            OUTBOX_BACKOFF_SECONDS="30",
        )
    )
    assert end.code == 1, end.lines


async def test_a_database_without_the_schema_is_said_so(
    start: Start, empty_database_url: str
) -> None:
    """With the command that makes it."""
    end = await ended(
        await start(
            "run",
            "--drain",
            OUTBOX_DATABASE_URL=empty_database_url,
            EMAIL_API_URL="http://127.0.0.1:9",
        )
    )
    assert end.code == 1
    assert "run: outbox migrate" in end.lines
    assert "Traceback" not in end.lines


@pytest.fixture
def refused_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., str]]:
    """Runs the command in this process with something wrong: exit code 2, and what is said."""
    (tmp_path / "little_shop.py").write_text(APP)
    root = logging.getLogger()
    before = (root.level, list(root.handlers))

    def run(*arguments: str, **settings: str) -> str:
        for name, value in (SETTINGS | settings).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as caught:
            cli(["run", *arguments])
        assert caught.value.code == 2
        said = capsys.readouterr()
        assert API_KEY not in said.out + said.err
        return said.err

    yield run
    root.setLevel(before[0])
    root.handlers[:] = before[1]


def test_wrong_settings_of_both_kinds_are_told_at_once(refused_with: Callable[..., str]) -> None:
    """A line each."""
    lines = refused_with(EMAIL_API_KEY="", EMAIL_PROVIDER="smtp", OUTBOX_LEASE_SECONDS="x")
    assert "EMAIL_API_KEY: is not set" in lines
    assert "EMAIL_PROVIDER: is no known provider" in lines
    assert "OUTBOX_LEASE_SECONDS: " in lines


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"EMAIL_APP": ""}, "EMAIL_APP: is not set; set it, or give --app MODULE:NAME"),
        ({"EMAIL_APP": "nowhere:emails"}, "there is no module nowhere here"),
        ({"EMAIL_APP": "little_shop:nothing"}, "little_shop has no nothing"),
        ({"EMAIL_API_KEY": f"{API_KEY}\n"}, "EMAIL_API_KEY: has a space or line break at an end"),
        ({"EMAIL_TIMEOUT_SECONDS": "50"}, "EMAIL_TIMEOUT_SECONDS=50 must be below OUTBOX_LEASE"),
        ({"EMAIL_KEY_WINDOW_SECONDS": "5"}, "EMAIL_KEY_WINDOW_SECONDS less 1/24"),
        ({}, "OUTBOX_DATABASE_URL: is not set, and the provider at api.resend.com is a real one"),
        ({"OUTBOX_DATABASE_URL": "mysql://x:hunter2@y/z"}, "OUTBOX_DATABASE_URL: not a PostgreSQL"),
        ({"OUTBOX_LOG_LEVEL": "loud"}, "OUTBOX_LOG_LEVEL: must be one of"),
    ],
)
def test_wrong_use_is_one_clear_line(
    refused_with: Callable[..., str], settings: dict[str, str], line: str
) -> None:
    """Exit code 2, and no secret in it."""
    said = refused_with(**settings).strip()
    assert line in said
    assert said.startswith("email-consumer: ")
    assert len(said.splitlines()) == 1
    assert "hunter2" not in said


@pytest.mark.parametrize("arguments", [["--concurrency", "0"], ["--timeout", "-1"], ["--what"]])
def test_wrong_arguments_are_wrong_use(
    refused_with: Callable[..., str], arguments: list[str]
) -> None:
    """As typer tells them."""
    assert "Error: " in refused_with(*arguments)


async def test_a_missing_extra_is_named(start: Start, tmp_path: Path) -> None:
    """Instead of a traceback: which extra to install."""
    (tmp_path / "typer.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'typer'\", name='typer')"
    )
    end = await ended(await start("run"))
    lines = end.lines
    assert end.code == 2
    assert "Traceback" not in lines
    assert "typer is not installed" in lines
    assert "pip install 'outbox-effects[consumer]'" in lines
