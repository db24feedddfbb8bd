"""How a topic reads its payload: JSON text into the type that its function asks for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final, get_origin

from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError

from outbox.errors import ConfigurationError
from outbox.gateway import Unrenderable

_PROBLEMS_SHOWN: Final = 3
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,59}")


class PayloadReader:
    """Reads payloads of one type: a pydantic model, a dataclass, a TypedDict or a dict.

    Types are strict as JSON can be (``"3"`` is no number, an ISO text is a date). Fields that the
    type doesn't know are ignored, unless it forbids them itself, so that a newer producer's extra
    field passes an older consumer.

    Raises:
        ConfigurationError: the type is none of these, or pydantic can't read it.
    """

    def __init__(self, kind: Any) -> None:
        if not _reads_objects(kind):
            raise ConfigurationError(
                "its parameter must be annotated with a pydantic model, a dataclass, a TypedDict "
                "or a dict"
            )
        try:
            self._adapter: TypeAdapter[object] = TypeAdapter(kind)
        except (PydanticUserError, PydanticSchemaGenerationError) as error:
            raise ConfigurationError(f"its payload can't be read: {_first_line(error)}") from error

    def read(self, payload: str) -> object:
        """Return the payload as the type.

        Raises:
            Unrenderable: it doesn't fit; says where and how, without its values.
        """
        try:
            return self._adapter.validate_json(payload, strict=True)
        except ValidationError as error:
            raise Unrenderable(_described(error)) from error
        except RecursionError as error:
            raise Unrenderable("payload: nested too deep") from error


def _reads_objects(kind: object) -> bool:
    origin = get_origin(kind) or kind
    if not isinstance(origin, type):
        return False
    if issubclass(origin, BaseModel | Mapping):
        return True
    return dataclasses.is_dataclass(origin) or hasattr(origin, "__total__")


def _described(error: ValidationError) -> str:
    """Name the wrong fields and what is wrong, by pydantic's codes: its sentences quote values."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [f"{_path(problem['loc'])}: {problem['type']}" for problem in problems]
    more = len(shown) - _PROBLEMS_SHOWN
    return "; ".join(shown[:_PROBLEMS_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _path(location: tuple[int | str, ...]) -> str:
    """``payload.lines[2].price``; a key that isn't a plain name may be a value, so it is hidden."""
    path = "payload"
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if _FIELD.fullmatch(part) else ".*"
    return path


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
