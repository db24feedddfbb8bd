"""House rules that a tool can check: what is shipped, what it needs, and how things are named."""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outbox import statements

if TYPE_CHECKING:
    from collections.abc import Iterator
    from email.message import Message

ROOT = Path(__file__).parent.parent
SHIPPED = ("outbox", "consumers")
PACKAGES = (*SHIPPED, "shop_example")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Names that say nothing about what is inside.
VAGUE = {"base", "common", "core", "helper", "helpers", "manager", "misc", "util", "utils"}
REGISTRY_HOST = re.compile(r"(pypi|pythonhosted|npmjs)\.(org|io|com)")
PINNED = re.compile(
    r"^([a-z0-9-]+)==\S+ \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE
)

IMPORT_ALONE = """
import sys
sys.path.insert(0, sys.argv[1])
import outbox
foreign = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
print(*sorted(foreign - {"__main__", "outbox"}))
"""


def sources(*folders: str) -> Iterator[Path]:
    """The Python files below some folders of the checkout, but none that was installed there."""
    for folder in folders:
        files = sorted((ROOT / folder).rglob("*.py"))
        yield from (file for file in files if ".venv" not in file.relative_to(ROOT).parts)


def tracked_texts() -> Iterator[tuple[str, str]]:
    """Name and text of every file that is in the repository, or would be with the next commit."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, listing.stdout.split("\0")):
        if (ROOT / name).is_file():
            yield name, (ROOT / name).read_text(errors="replace")


def names_of(requirements: list[str]) -> set[str]:
    """The distributions that requirements ask for, those of our own extras followed."""
    found = set()
    for requirement in requirements:
        match = re.match(r"([a-z0-9-]+)(?:\[([a-z,]+)\])?", requirement)
        assert match, requirement
        name, extras = match.groups()
        if name == PROJECT["name"]:
            for extra in extras.split(","):
                found |= names_of(PROJECT["optional-dependencies"][extra])
        else:
            found.add(name)
    return found


def required() -> list[str]:
    """The lines of requirements.in that ask for something."""
    lines = (ROOT / "requirements.in").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """The wheel, built from a copy of the checkout so that nothing is left in it."""
    checkout, target = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=ignored)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, checkout)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir"]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(target), str(checkout)]
    subprocess.run(command, check=True, capture_output=True)
    with zipfile.ZipFile(next(target.glob("*.whl"))) as archive:
        yield archive


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    """The wheel's metadata."""
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return HeaderParser().parsestr(wheel.read(name).decode())


def test_the_wheel_carries_every_file_of_the_two_packages(wheel: zipfile.ZipFile) -> None:
    """Code, SQL, templates and the markers of typing."""
    files = (path for folder in SHIPPED for path in (ROOT / folder).rglob("*") if path.is_file())
    expected = {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}
    found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert found == expected
    assert {"outbox/py.typed", "consumers/py.typed", "outbox/sql/claim_jobs.sql"} <= found


def test_the_wheel_asks_for_nothing_without_an_extra(metadata: Message) -> None:
    """An application that enqueues has a driver already."""
    assert [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line] == []
    extras = {"consumer", "dev", "embedded", "psycopg", "shop", "sqlalchemy"}
    assert set(metadata.get_all("Provides-Extra", [])) == extras


def test_the_wheel_has_the_version_that_the_package_tells(metadata: Message) -> None:
    """One number, wherever somebody looks."""
    assert (
        metadata["Version"] == PROJECT["version"] == importlib.import_module("outbox").__version__
    )


@pytest.mark.parametrize("target", PROJECT["scripts"].values(), ids=PROJECT["scripts"])
def test_a_console_script_leads_to_something_that_can_be_called(target: str) -> None:
    """The commands `outbox` and `email-consumer`."""
    module, _, name = target.partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_importing_outbox_needs_nothing_but_python() -> None:
    """In an interpreter that sees no site-packages, and without bringing in a foreign module."""
    command = [sys.executable, "-I", "-S", "-c", IMPORT_ALONE, str(ROOT)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_the_lock_covers_what_the_extra_for_development_asks_for() -> None:
    """requirements.in and pyproject.toml name the same distributions."""
    assert names_of(required()) == names_of(PROJECT["optional-dependencies"]["dev"])


def test_every_requirement_is_pinned_with_hashes_and_no_address() -> None:
    """So that the lock is worth the same on every machine."""
    text = (ROOT / "requirements.txt").read_text()
    pinned = {match[1] for match in PINNED.finditer(text)}
    assert names_of(required()) <= pinned
    rest = [line for line in PINNED.sub("", text).splitlines() if not re.match(r"\s*#|$", line)]
    assert rest == []
    assert not re.search(r"://|file:/|--(extra-)?index-url|--find-links|--trusted-host", text)


def test_no_file_names_the_host_of_a_package_registry() -> None:
    """Where packages come from is a matter of the machine, not of this project."""
    assert [name for name, text in tracked_texts() if REGISTRY_HOST.search(text)] == []


def test_the_compose_file_has_no_secret_to_fall_back_on() -> None:
    """Whoever forgets a password gets an error that names it, never somebody else's password."""
    lines = (ROOT / "docker-compose.yml").read_text().splitlines()
    secrets = [line for line in lines if re.match(r"\s+\w*(PASSWORD|KEY):", line)]
    assert len(secrets) == 4
    assert [line for line in secrets if not re.search(r": \$\{\w+:\?[^}]+\}$", line)] == []


def test_no_module_is_named_after_nothing() -> None:
    """A module is named after its concept, a noun or a verb of the domain."""
    modules = [path.relative_to(ROOT) for path in sources(*PACKAGES, "tests", "benchmarks")]
    vague = [module for module in modules for part in module.with_suffix("").parts
             if VAGUE & set(part.split("_"))]  # fmt: skip
    assert vague == []


def test_every_test_says_in_a_sentence_what_it_shows() -> None:
    """Name and docstring together read as a claim."""
    functions = (
        (path, node)
        for path in sources("tests")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    silent = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path, node in functions
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert silent == []


@pytest.mark.parametrize("path", sorted((ROOT / "outbox/sql").glob("*.sql")), ids=lambda p: p.stem)
def test_every_statement_can_be_loaded_by_its_name(path: Path) -> None:
    """Named verb_noun, and every parameter gets its placeholder."""
    assert re.fullmatch(r"[a-z]+(_[a-z]+)+", path.stem)
    for parameter in statements.parameters(path.stem):
        assert f"%({parameter})" in statements.psycopg(path.stem)
