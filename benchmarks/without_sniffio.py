"""The plain httpx client as ``pip install httpx`` leaves it: without sniffio, which the consumer
installs. httpcore looks for it again and again, and each failed search costs.

Nothing here may import httpx before ``hide`` has run.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from multiprocessing.connection import Connection as Link
from types import ModuleType


class _Searching:
    """The finder of installed packages, which looks for one of them under a name that none has.

    So the search goes through all folders, as that for an absent package does. (``None`` in
    sys.modules would end it at once.)
    """

    def __init__(self, hidden: str) -> None:
        self._hidden = hidden

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Part of the protocol of sys.meta_path."""
        sought = f"{name}_hidden" if name == self._hidden else name
        return PathFinder.find_spec(sought, path, target)


def hide(name: str) -> None:
    """Make a package that this process has not imported yet as good as absent."""
    assert name not in sys.modules, f"{name} is imported already"
    sys.meta_path[sys.meta_path.index(PathFinder)] = _Searching(name)
    assert importlib.util.find_spec(name) is None, f"{name} is found all the same"


def plain_client(link: Link, provider_url: str, concurrency: int, body: bytes) -> None:
    """Be ``bare.plain_client`` in a process that has no sniffio."""
    hide("sniffio")
    from benchmarks import bare

    bare.plain_client(link, provider_url, concurrency, body)
