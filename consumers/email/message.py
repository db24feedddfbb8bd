"""A message: who gets it and what it says, checked when it is made."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Self, TypeAlias

from consumers.email.masking import mask_address
from outbox.errors import OutboxError

ADDRESS_CHARACTERS_MAX: Final = 320
NAME_CHARACTERS_MAX: Final = 256
#: A header line may not be longer (RFC 5322, 2.1.1).
SUBJECT_CHARACTERS_MAX: Final = 998
#: To, cc and bcc together; the lowest limit among the providers (Resend, Postmark, SES: 50).
RECIPIENTS_MAX: Final = 50
HEADERS_MAX: Final = 50
TAGS_MAX: Final = 50

_WORD = r'[^\s@<>()\[\]\\,;:"]+'
_PLAIN = re.compile(rf"{_WORD}@{_WORD}")
_NAMED = re.compile(
    r'(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<phrase>[^"<>()\[\]\\,;:@]*))\s*<(?P<address>[^<>]*)>'
)
_NEEDS_QUOTES = re.compile(r'[()<>\[\]:;@\\,."]')
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,76}")
_HEADERS_OF_FIELDS = frozenset({"from", "to", "cc", "bcc", "subject", "reply-to"})
#: The strictest of the providers (Resend): ASCII letters, digits, underscore, hyphen.
_TAG = re.compile(r"[A-Za-z0-9_-]{1,256}")
#: Control characters, surrogates, line and paragraph separators: they end or break header lines.
_UNFIT_FOR_LINES = frozenset({"Cc", "Cs", "Zl", "Zp"})


class InvalidMessage(OutboxError, ValueError):
    """A message can't be sent as it is; names the field and the problem, never the value."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    """An e-mail address, and the name to show beside it.

    Syntax is checked only as far as it could change who is addressed; whether the mailbox exists
    is for the provider to say. Non-ASCII is carried unchanged.

    Raises:
        InvalidMessage: the address or the name can't stand in a header.
    """

    address: str
    name: str = ""

    def __post_init__(self) -> None:
        _check_address(self.address)
        _check_line(self.name, "name", NAME_CHARACTERS_MAX)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``jane@example.com``, ``Jane <jane@example.com>`` or ``"Doe, Jane" <jane@...>``.

        Exactly: a text that could be read as two addresses, or in two ways, is refused.

        Raises:
            InvalidMessage: it is none of the three.
        """
        if len(text) > ADDRESS_CHARACTERS_MAX + 2 * NAME_CHARACTERS_MAX:
            raise InvalidMessage("address", "is too long")
        if _PLAIN.fullmatch(text):
            return cls(text)
        named = _NAMED.fullmatch(text)
        if named is None:
            raise InvalidMessage("address", "must be one address: name@host or Name <name@host>")
        quoted = named["quoted"]
        name = named["phrase"].strip() if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        return cls(named["address"], name)

    def __str__(self) -> str:
        """The form in which providers take it, with the name quoted where it needs to be."""
        if not self.name:
            return self.address
        if not _NEEDS_QUOTES.search(self.name) and self.name == self.name.strip():
            return f"{self.name} <{self.address}>"
        escaped = re.sub(r'(["\\])', r"\\\1", self.name)
        return f'"{escaped}" <{self.address}>'

    def __repr__(self) -> str:
        return f"Address({mask_address(self.address)!r})"


Recipient: TypeAlias = str | Address
Recipients: TypeAlias = Recipient | Sequence[Recipient]


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Message:
    """One e-mail. Addresses may be given as texts, alone or in a tuple; they become ``Address``.

    ``headers`` are extra mail headers; ``tags`` are names and values that the provider shows in
    its own pages and webhooks (letters, digits, ``_`` and ``-``).

    Raises:
        InvalidMessage: a field can't be sent; the text names it and says why, without its value.
    """

    to: tuple[Address, ...]
    subject: str
    text: str | None
    html: str | None
    reply_to: tuple[Address, ...]
    cc: tuple[Address, ...]
    bcc: tuple[Address, ...]
    headers: Mapping[str, str]
    tags: Mapping[str, str]

    def __init__(
        self,
        to: Recipients,
        subject: str,
        text: str | None = None,
        html: str | None = None,
        *,
        reply_to: Recipients = (),
        cc: Recipients = (),
        bcc: Recipients = (),
        headers: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        fields = {
            "to": _addresses(to, "to"),
            "subject": _subject(subject),
            "text": _body(text, "text"),
            "html": _body(html, "html"),
            "reply_to": _addresses(reply_to, "reply_to"),
            "cc": _addresses(cc, "cc"),
            "bcc": _addresses(bcc, "bcc"),
            "headers": _headers(headers or {}),
            "tags": _tags(tags or {}),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        self._check_whole()

    def _check_whole(self) -> None:
        if not self.to:
            raise InvalidMessage("to", "needs at least one address")
        if len(self.to) + len(self.cc) + len(self.bcc) > RECIPIENTS_MAX:
            raise InvalidMessage("to", f"more than {RECIPIENTS_MAX} recipients with cc and bcc")
        if not self.text and not self.html:
            raise InvalidMessage("text", "a message needs a text or an html part")

    def __repr__(self) -> str:
        recipients = ", ".join(mask_address(recipient.address) for recipient in self.to)
        return f"Message(to={recipients})"


def _check_line(value: str, field: str, characters_max: int) -> None:
    if not isinstance(value, str):
        raise InvalidMessage(field, f"must be a text, not {type(value).__name__}")
    if len(value) > characters_max:
        raise InvalidMessage(field, f"longer than {characters_max} characters")
    for character in value:
        if unicodedata.category(character) in _UNFIT_FOR_LINES:
            raise InvalidMessage(field, f"holds U+{ord(character):04X}, which no header line may")


def _check_address(address: str) -> None:
    _check_line(address, "address", ADDRESS_CHARACTERS_MAX)
    if not _PLAIN.fullmatch(address):
        raise InvalidMessage("address", "must be one address of the form name@host")


def _addresses(given: Recipients, field: str) -> tuple[Address, ...]:
    if isinstance(given, str | Address):
        return (_address(given, field),)
    if not isinstance(given, Sequence):
        raise InvalidMessage(field, f"must be an address or several, not {type(given).__name__}")
    if len(given) > RECIPIENTS_MAX:
        raise InvalidMessage(field, f"more than {RECIPIENTS_MAX} addresses")
    return tuple(_address(each, f"{field}[{index}]") for index, each in enumerate(given))


def _address(given: Recipient, field: str) -> Address:
    if isinstance(given, Address):
        return given
    if not isinstance(given, str):
        raise InvalidMessage(field, f"must be a text or an Address, not {type(given).__name__}")
    try:
        return Address.parse(given)
    except InvalidMessage as error:
        raise InvalidMessage(field, str(error)) from None


def _subject(subject: str) -> str:
    _check_line(subject, "subject", SUBJECT_CHARACTERS_MAX)
    if not subject.strip():
        raise InvalidMessage("subject", "is empty")
    return subject


def _body(body: str | None, field: str) -> str | None:
    if body is None:
        return None
    if not isinstance(body, str):
        raise InvalidMessage(field, f"must be a text, not {type(body).__name__}")
    for character in ("\0", *re.findall("[\ud800-\udfff]", body)[:1]):
        if character in body:
            raise InvalidMessage(field, f"holds U+{ord(character):04X}, which can't be sent")
    return body


def _fits(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    if len(headers) > HEADERS_MAX:
        raise InvalidMessage("headers", f"more than {HEADERS_MAX}")
    seen = set[str]()
    for name, value in headers.items():
        if not _fits(_HEADER_NAME, name):
            raise InvalidMessage("headers", "a name must be a header name, such as X-Order-Kind")
        if name.lower() in _HEADERS_OF_FIELDS or name.lower() in seen:
            raise InvalidMessage(f"headers.{name}", "is a field of its own, or given twice")
        seen.add(name.lower())
        _check_line(value, f"headers.{name}", SUBJECT_CHARACTERS_MAX)
    return MappingProxyType(dict(sorted(headers.items())))


def _tags(tags: Mapping[str, str]) -> Mapping[str, str]:
    if len(tags) > TAGS_MAX:
        raise InvalidMessage("tags", f"more than {TAGS_MAX}")
    for name, value in tags.items():
        if not _fits(_TAG, name):
            raise InvalidMessage("tags", "a name may hold letters, digits, _ and - only")
        if not _fits(_TAG, value):
            raise InvalidMessage(f"tags.{name}", "may hold letters, digits, _ and - only, 1 to 256")
    return MappingProxyType(dict(sorted(tags.items())))
