"""Foreign text before people: control characters are shown, not obeyed."""

from __future__ import annotations

import unicodedata

#: Control, format (bidirectional overrides, joiners), surrogates, private, unassigned; line ends.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def legible(text: str) -> str:
    """Return a text with every character shown that a terminal would obey or hide."""
    return "".join(_shown(c) if unicodedata.category(c) in _UNSEEN else c for c in text)


def _shown(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
