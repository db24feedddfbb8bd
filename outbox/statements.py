"""The SQL of the library, one statement a file under ``sql/``, with ``:named`` parameters."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_COMMENT = re.compile(r"^[ \t]*--.*\n", re.MULTILINE)
#: No statement has a text with a line break in it, or with a blank inside a bracket.
_INDENTATION = re.compile(r"(?<=\()\n\s*|\n\s*(?=\))")
_LINES = re.compile(r"\n\s*")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)\b")


@cache
def text(name: str) -> str:
    """Return ``sql/<name>.sql`` without its comments, with ``:named`` parameters as it ships."""
    source = files("outbox").joinpath("sql", f"{name}.sql").read_text("utf-8")
    return _COMMENT.sub("", source).strip()


@cache
def parameters(name: str) -> frozenset[str]:
    """Return the names of the statement's parameters."""
    return frozenset(_PARAMETER.findall(text(name)))


@cache
def psycopg(name: str) -> str:
    """Return the statement with psycopg's placeholders, preferring binary parameters.

    Without its indentation: of a query of more than 4,096 bytes psycopg 3.3 doesn't remember how it
    is read, and reads it anew each time.
    """
    bare = _LINES.sub(" ", _INDENTATION.sub("", text(name)))
    return _PARAMETER.sub(r"%(\1)b", bare.replace("%", "%%"))
