"""The registry: which function turns the payload of which topic into a message."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar, get_args

from jinja2 import BaseLoader

from consumers.email.message import InvalidMessage, Message
from consumers.email.payloads import PayloadReader
from consumers.email.templates import Parts, Templates
from outbox.errors import ConfigurationError
from outbox.gateway import Unrenderable

Unknown = Literal["hold", "repeat"]
Renders = TypeVar("Renders", bound=Callable[[Any], Message])

_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic: how its payloads become messages, and what may be done about them.

    ``unknown`` and ``max_attempts`` are ``None`` where the settings decide.
    """

    name: str
    function: Callable[[Any], object]
    reader: PayloadReader
    unknown: Unknown | None
    max_attempts: int | None

    def message(self, payload: str) -> Message:
        """Return the message of a payload (JSON text).

        Raises:
            Unrenderable: the payload doesn't fit, or the function failed; no values in the text.
        """
        given = self.reader.read(payload)
        try:
            message = self.function(given)
        except InvalidMessage as error:
            raise Unrenderable(f"message.{error}") from error
        except Exception as error:
            raise Unrenderable(self._failure(error)) from error
        if not isinstance(message, Message):
            kind = type(message).__name__
            raise Unrenderable(f"{self.function.__name__} returned {kind} instead of a Message")
        return message

    def _failure(self, error: Exception) -> str:
        return f"{self.function.__name__} raised {type(error).__name__}{self._place(error)}"

    def _place(self, error: Exception) -> str:
        """Where an error comes from: the last line of the application's own code or templates."""
        home = Path(self.function.__code__.co_filename).parent
        frames = extract_tb(error.__traceback__)[1:]
        own = [frame for frame in frames if _is_own(Path(frame.filename), home)]
        if not frames:
            return ""
        frame = (own or frames)[-1]
        return f" ({Path(frame.filename).name} line {frame.lineno})"


class Emails:
    """The e-mails of an application: ``emails = Emails(templates="shop:templates")``.

    ``templates``: ``"package:folder"``, a folder's ``Path``, a Jinja2 loader, or none.
    """

    def __init__(self, templates: str | Path | BaseLoader | None = None) -> None:
        self._templates = None if templates is None else Templates(templates)
        self._topics: dict[str, Topic] = {}

    @property
    def topics(self) -> Mapping[str, Topic]:
        """The topics by name."""
        return MappingProxyType(self._topics)

    def topic(
        self, name: str, *, unknown: Unknown | None = None, max_attempts: int | None = None
    ) -> Callable[[Renders], Renders]:
        """Register a function that turns the payload of a topic into a ``Message``.

        The function takes one argument, annotated with the payload's type (pydantic model,
        dataclass, TypedDict or dict), and depends on nothing else: a repeat after a crash may
        render it again. ``unknown`` says what to do when an earlier send is possible and can't be
        proven: ``hold`` for a person, or ``repeat``. Both override the settings for this topic.

        Raises:
            ConfigurationError: a name given twice or not allowed, or a function of another shape.
        """

        def register(function: Renders) -> Renders:
            try:
                topic = self._make(name, function, unknown, max_attempts)
            except ConfigurationError as error:
                where = getattr(function, "__qualname__", type(function).__name__)
                raise ConfigurationError(f"topic {name!r} ({where}): {error}") from error
            self._topics[name] = topic
            return function

        return register

    def render(self, topic: str, payload: Mapping[str, object] | str) -> Message:
        """Return the message of a payload as a consumer would, for an application's own tests.

        Raises:
            KeyError: no such topic.
            Unrenderable: as in a consumer; its ``__cause__`` is the function's own error.
        """
        text = payload if isinstance(payload, str) else json.dumps(payload)
        return self._topics[topic].message(text)

    def template(self, name: str, /, **context: object) -> Parts:
        """Render the parts ``NAME.subject.txt``, ``NAME.txt`` and ``NAME.html``.

        Raises:
            ConfigurationError: ``Emails`` was made without templates.
            jinja2.TemplateError: there is no ``NAME.txt``, or a template is wrong.
        """
        if self._templates is None:
            raise ConfigurationError('there are no templates; give Emails(templates="package:...")')
        return self._templates.render(name, context)

    def _make(
        self, name: str, function: object, unknown: Unknown | None, max_attempts: int | None
    ) -> Topic:
        if not _TOPIC_NAME.fullmatch(name):
            raise ConfigurationError(
                "a name is 1 to 100 letters, digits, dots, underscores or hyphens, and starts with "
                "a letter or digit"
            )
        if name in self._topics:
            other = self._topics[name].function.__qualname__
            raise ConfigurationError(f"is registered already, for {other}")
        if unknown not in {None, *get_args(Unknown)}:
            raise ConfigurationError('unknown must be "hold" or "repeat"')
        if max_attempts is not None and max_attempts < 1:
            raise ConfigurationError("max_attempts must be 1 or more")
        if not inspect.isfunction(function):
            raise ConfigurationError("must be a plain function")
        reader = PayloadReader(_payload_type(function))
        return Topic(name, function, reader, unknown, max_attempts)


def _payload_type(function: Callable[..., object]) -> object:
    """Return the annotation of the only parameter of a function that returns a ``Message``."""
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigurationError("must be a plain function: rendering needs no I/O, so no async")
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError as error:
        raise ConfigurationError(f"its annotations can't be resolved: {error}") from error
    parameters = list(signature.parameters.values())
    if len(parameters) != 1 or parameters[0].kind not in _POSITIONAL:
        raise ConfigurationError("must take exactly one argument, the payload")
    if signature.return_annotation not in {Message, inspect.Signature.empty}:
        raise ConfigurationError("must return a Message")
    return parameters[0].annotation


_POSITIONAL: Final = frozenset({
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
})  # fmt: skip


def _is_own(file: Path, home: Path) -> bool:
    return file.suffix in {".html", ".txt"} or file.parent == home
