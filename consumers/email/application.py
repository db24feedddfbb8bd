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
    try:
        return _find(reference)
    except ConfigurationError as error:
        raise ConfigurationError(f"EMAIL_APP (--app) {reference}: {error}") from error


def _find(reference: str) -> Emails:
    module_name, separator, name = reference.partition(":")
    if not (separator and module_name and name):
        raise ConfigurationError("write MODULE:NAME, such as shop.emails:emails")
    found = getattr(_imported(module_name), name, None)
    if found is None:
        raise ConfigurationError(f"{module_name} has no {name}")
    if not isinstance(found, Emails):
        raise ConfigurationError(f"must be an Emails object, but is {type(found).__name__}")
    if not found.topics:
        raise ConfigurationError("registers no topic; decorate a function with .topic(...)")
    return found


def _imported(module_name: str) -> object:
    # A console script's search path has its own folder first, not the current one.
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return import_module(module_name)
    except ConfigurationError:
        raise
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigurationError(
                f"there is no module {error.name} here; run the command in the folder that holds "
                "it, or install it"
            ) from error
        raise ConfigurationError(_failure(error)) from error
    except Exception as error:
        raise ConfigurationError(_failure(error)) from error


def _failure(error: Exception) -> str:
    frame = extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name} line {frame.lineno}"
    # Other errors' texts may quote what the module has read, a password say.
    telling = isinstance(error, ImportError | SyntaxError | NameError | AttributeError)
    text = f": {error}".partition("\n")[0] if telling else ""
    return f"its import fails: {type(error).__name__}{text} ({place})"
