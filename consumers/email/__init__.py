"""The e-mail consumer: topics become messages, messages become requests to one provider.

What an application needs is here: ``Emails`` with its decorator ``topic``, ``Message`` and
``Address``. The names are loaded when they are first used, so that the command can say which extra
is missing instead of failing on import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consumers.email.masking import mask_address as mask_address
    from consumers.email.message import Address as Address
    from consumers.email.message import InvalidMessage as InvalidMessage
    from consumers.email.message import Message as Message
    from consumers.email.templates import Parts as Parts
    from consumers.email.topics import Emails as Emails

_HOMES = {
    "Address": "message",
    "Emails": "topics",
    "InvalidMessage": "message",
    "Message": "message",
    "Parts": "templates",
    "mask_address": "masking",
}

__all__ = ["Address", "Emails", "InvalidMessage", "Message", "Parts", "mask_address"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
