"""Jinja2 templates for the parts of a message: nothing in them but what they are given."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from jinja2 import (
    BaseLoader,
    Environment,
    FileSystemLoader,
    PackageLoader,
    StrictUndefined,
    TemplateNotFound,
    select_autoescape,
)

from outbox.errors import ConfigurationError


class Parts(NamedTuple):
    """The rendered parts of one message; ``html`` is ``None`` where there is no such template."""

    subject: str
    text: str
    html: str | None


class Templates:
    """The templates of one place: ``"package:folder"``, a folder's ``Path``, or a Jinja2 loader.

    A message ``NAME`` has ``NAME.txt``, and if wanted ``NAME.html`` and ``NAME.subject.txt``. HTML
    is escaped, text is not; a missing variable is an error.

    Raises:
        ConfigurationError: there is no such place.
    """

    def __init__(self, place: str | Path | BaseLoader) -> None:
        self._environment = Environment(
            loader=_loader(place),
            autoescape=select_autoescape(("html",), default_for_string=False),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            # A template edited on disk must not change what a running consumer sends.
            auto_reload=False,
        )
        # A message is a function of its payload: no dice.
        self._environment.filters.pop("random", None)
        self._environment.globals.pop("lipsum", None)

    def render(self, name: str, context: dict[str, object]) -> Parts:
        """Return the parts of a message.

        Raises:
            jinja2.TemplateError: there is no ``NAME.txt``, or a template is wrong.
        """
        return Parts(
            subject=(self._optional(f"{name}.subject.txt", context) or "").strip(),
            text=self._environment.get_template(f"{name}.txt").render(context),
            html=self._optional(f"{name}.html", context),
        )

    def _optional(self, name: str, context: dict[str, object]) -> str | None:
        try:
            template = self._environment.get_template(name)
        except TemplateNotFound:
            return None
        return template.render(context)


def _loader(place: str | Path | BaseLoader) -> BaseLoader:
    if isinstance(place, BaseLoader):
        return place
    if isinstance(place, Path):
        if not place.is_dir():
            raise ConfigurationError(f"templates: there is no folder {place}")
        return FileSystemLoader(place)
    package, _, folder = place.partition(":")
    try:
        return PackageLoader(package, folder or "templates")
    except (ValueError, ImportError) as error:
        raise ConfigurationError(
            f'templates: "{place}" names no folder of an importable package; '
            'write "package:folder", or give a pathlib.Path'
        ) from error
