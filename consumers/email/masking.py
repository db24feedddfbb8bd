"""Text that may be shown: addresses masked, nothing that could steer a terminal or a database."""

from __future__ import annotations

import re
import unicodedata

#: What is looked at of a foreign text at all; a bound on the work, far above what is kept.
_READ_CHARACTERS = 1_000
_ADDRESS = re.compile(r"""[^\s@<>()\[\]"',;:=]+(?:@|%40)[^\s@<>()\[\]"',;:]+""")


def mask_address(address: str) -> str:
    """Return a hint of an address that names nobody: ``j***@e***`` for ``jane@example.com``."""
    local, _, domain = address.rpartition("@")
    return f"{local[:1]}***@{domain[:1]}***"


def mask_addresses(text: str) -> str:
    """Return a text with every e-mail address in it masked."""
    return _ADDRESS.sub(lambda match: mask_address(match[0].replace("%40", "@")), text)


def presentable(text: str, characters: int) -> str:
    """Return a foreign text as one line, masked, of at most ``characters``.

    Control, format (bidirectional overrides), surrogate and unassigned characters are dropped.
    """
    start = text[:_READ_CHARACTERS]
    if len(text) > len(start):
        # A word cut in two may be half an address, which the mask would not know.
        start = re.sub(r"\S*$", "", start)
    spaced = "".join(" " if character.isspace() else character for character in start)
    kept = "".join(c for c in spaced if not unicodedata.category(c).startswith("C"))
    return mask_addresses(" ".join(kept.split()))[:characters]
