"""What it takes to run a server that refuses root, from root: an account, and folders it can use.

For any other user the account is that user, and nothing here changes who owns what.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from outbox.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

# `nobody` exists on every Linux and macOS and may do nothing; taking it spares us to create an
# account on somebody's machine.
ACCOUNT = "nobody"

# A server lives for days and others can read its environment: it gets nothing of its starter's.
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def is_root() -> bool:
    """Whether this process may act for every account."""
    return os.geteuid() == 0


def account() -> tuple[int, int]:
    """User and group id that the server runs as.

    Raises ConfigurationError where root has no such account.
    """
    if not is_root():
        return os.geteuid(), os.getegid()
    try:
        entry = pwd.getpwnam(ACCOUNT)
    except KeyError as error:
        raise ConfigurationError(
            f"PostgreSQL does not run as root and this machine has no account {ACCOUNT}: "
            "start as another user, or set OUTBOX_DATABASE_URL"
        ) from error
    return entry.pw_uid, entry.pw_gid


def run(
    command: Sequence[str], cwd: Path, inherit: Sequence[int] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end as that account, with the file descriptors that it shall inherit.

    It gets a session of its own, so that Ctrl-C at the terminal does not reach it.
    """
    user, group = account() if is_root() else (None, None)
    return subprocess.run(
        command,
        cwd=cwd,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        start_new_session=True,
        pass_fds=inherit,
        umask=0o077,
        user=user,
        group=group,
        extra_groups=[] if is_root() else None,
    )


def can_enter(directory: Path) -> bool:
    """Whether the account gets through every directory above this one, and into it."""
    test = ["/bin/sh", "-c", 'test -x "$0"', str(directory)]
    return run(test, cwd=Path("/")).returncode == 0


def make_directories(directory: Path) -> None:
    """Make what is missing of a path so that the account can pass; touch nothing that exists."""
    for missing in [path for path in (directory, *directory.parents) if not path.exists()][::-1]:
        missing.mkdir(exist_ok=True)
        missing.chmod(0o755 if is_root() else 0o700)


def make_private(directory: Path) -> None:
    """Make a directory that only the account (and root) may enter.

    Raises ConfigurationError when somebody else has put something in its place.
    """
    user, group = account()
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in {user, os.geteuid()}:
        raise ConfigurationError(f"{directory} is not a directory of ours: remove it")
    directory.chmod(0o700)
    os.chown(directory, user, group)
