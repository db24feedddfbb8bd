"""Finds an application's ``Emails`` by its name on the command line."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from traceback import extract_tb

from consumers.email.topics import Emails
from outbox.errors import ConfigurationError


def load_emails(reference: str) -> Emails:
    """Import ``MODULE:NAME``, the current folder included in the search.

    Raises:
        ConfigurationError: one line: not of that form, not importable, or no ``Emails``.
    """
    module_name, separator, name = reference.partition(":")
    if not (separator and module_name and name):
        raise ConfigurationError(
            f"EMAIL_APP (--app) {reference}: write MODULE:NAME, such as shop.emails:emails"
        )
    found = getattr(_imported(module_name, reference), name, None)
    if found is None:
        raise ConfigurationError(f"EMAIL_APP (--app) {reference}: {module_name} has no {name}")
    if not isinstance(found, Emails):
        kind = type(found).__name__
        raise ConfigurationError(
            f"EMAIL_APP (--app) {reference}: must be an Emails object, but is {kind}"
        )
    if not found.topics:
        raise ConfigurationError(f"EMAIL_APP (--app) {reference}: registers no topic")
    return found


def _imported(module_name: str, reference: str) -> object:
    # A console script's search path has its own folder first, not the current one.
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return import_module(module_name)
    except ConfigurationError as error:
        raise ConfigurationError(f"EMAIL_APP (--app) {reference}: {error}") from error
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigurationError(
                f"EMAIL_APP (--app) {reference}: there is no module {error.name} here; run the command in the "
                "folder that holds it, or install it"
            ) from error
        raise ConfigurationError(_failure(reference, error)) from error
    except Exception as error:
        raise ConfigurationError(_failure(reference, error)) from error


def _failure(reference: str, error: Exception) -> str:
    frame = extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name} line {frame.lineno}"
    first_line = str(error).partition("\n")[0]
    return f"EMAIL_APP (--app) {reference}: its import fails: {type(error).__name__}: {first_line} ({place})"
