"""The providers by name; a new one is a module beside this and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from consumers.email.provider import Provider
from consumers.email.providers.resend import RESEND

PROVIDERS: Mapping[str, Provider] = MappingProxyType({
    provider.facts.name: provider for provider in (RESEND,)
})  # fmt: skip
