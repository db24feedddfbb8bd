"""Finding an application: each mistake is one line that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumers.email.application import load_emails
from outbox.errors import ConfigurationError

GOOD = """
from consumers.email import Emails, Message
emails = Emails()
nothing = Emails()
other = 7
@emails.topic("email.hello")
def hello(payload: dict) -> Message:
    return Message(payload["email"], "Hello", "Hi")
"""


def write(name: str, text: str) -> None:
    """A module in the current folder."""
    Path(f"{name}.py").write_text(text)


def refused(reference: str) -> str:
    """The line that a reference is refused with."""
    with pytest.raises(ConfigurationError) as caught:
        load_emails(reference)
    line = str(caught.value)
    assert line.startswith(f"EMAIL_APP (--app) {reference}: ")
    assert len(line.splitlines()) == 1
    return line


def test_an_application_in_the_current_folder_is_found() -> None:
    """As with python -m, whatever the command's own folder is."""
    write("little_good", GOOD)
    assert set(load_emails("little_good:emails").topics) == {"email.hello"}


@pytest.mark.parametrize("reference", ["shop", "shop:", ":emails", ""])
def test_another_form_is_refused(reference: str) -> None:
    """It is MODULE:NAME."""
    assert "write MODULE:NAME" in refused(reference)


@pytest.mark.parametrize("reference", ["little_nowhere:emails", "consumers.little_nowhere:emails"])
def test_a_module_that_isnt_there_is_named(reference: str) -> None:
    """With where to run the command."""
    assert "there is no module" in refused(reference)


def test_a_module_that_it_imports_in_vain_is_named_with_the_line() -> None:
    """Not mistaken for the application itself."""
    write("little_broken", "\nimport little_missing\n")
    line = refused("little_broken:emails")
    assert "its import fails: ModuleNotFoundError: No module named 'little_missing'" in line
    assert "(little_broken.py line 2)" in line


def test_an_error_at_import_is_named_without_its_text() -> None:
    """Which might quote a password that the module has read."""
    write("little_raises", "password = 'hunter2'\nraise RuntimeError(password)\n")
    line = refused("little_raises:emails")
    assert line.endswith("its import fails: RuntimeError (little_raises.py line 2)")


def test_a_syntax_error_is_named() -> None:
    """One line of it."""
    write("little_syntax", "def\n")
    assert "its import fails: SyntaxError: invalid syntax" in refused("little_syntax:emails")


def test_a_wrong_registration_is_told_in_its_own_words() -> None:
    """The registry's message says more than a traceback."""
    write("little_twice", GOOD + "emails.topic('email.hello')(hello)\n")
    assert "topic 'email.hello' (hello): is registered already" in refused("little_twice:emails")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing", "little_names has no missing"),
        ("other", "must be an Emails object, but is int"),
        ("Emails", "must be an Emails object, but is type"),
        ("nothing", "registers no topic"),
    ],
)
def test_a_name_that_is_no_application_is_refused(name: str, problem: str) -> None:
    """Missing, something else, or empty."""
    write("little_names", GOOD)
    assert problem in refused(f"little_names:{name}")
