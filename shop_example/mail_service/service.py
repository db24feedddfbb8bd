"""What happens to one request, told in order.

Note its arrival, see whether it meets a fault, check it, look its key up, accept it, and only when
the record has all that on disk let an answer go.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
import uuid
from dataclasses import dataclass
from typing import Any

from shop_example.mail_service import answer as answers
from shop_example.mail_service import mail
from shop_example.mail_service.answer import Answer
from shop_example.mail_service.events import Decided, FaultsSet, Received
from shop_example.mail_service.exchange import Reply, Request
from shop_example.mail_service.fault_plan import FaultPlan
from shop_example.mail_service.faults import Fault, Manner
from shop_example.mail_service.keys import Remembered, Standing
from shop_example.mail_service.mail import Mail, Refused
from shop_example.mail_service.rate_limit import RateLimit
from shop_example.mail_service.record_book import RecordBook
from shop_example.mail_service.settings import Settings

KEY_HEADER = b"idempotency-key"
MAX_KEY_LENGTH = 256

_LISTS = ("to", "cc", "bcc", "reply_to")
_NO_STATUS = (Manner.CLOSE, Manner.RESET, Manner.STALL, Manner.HALF_STATUS)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that has its number, with its parsed body or the refusal of what it sent."""

    seq: int
    key: str | None
    content: dict[str, Any] | Answer


class MailService:
    """Accepts mails, keeps keys and injects faults; all it knows is in its record book."""

    def __init__(self, settings: Settings, book: RecordBook) -> None:
        self.settings = settings
        self.book = book
        self.faults = FaultPlan(settings.rates, settings.seed)
        self._rate_limit = (
            RateLimit(settings.rate_limit, time.monotonic) if settings.rate_limit else None
        )

    def note_faults(self) -> None:
        """Has the record say which faults are to be expected from here on."""
        plan = self.faults
        targeted = tuple(target.as_values() for target in plan.targeted)
        self.book.note(FaultsSet(time.time(), plan.seed, dict(plan.rates), targeted))

    async def post_email(self, request: Request) -> Reply:
        """``POST /emails``: the story of one request; RecordError if it can't be recorded."""
        arrival = self._arrive(request)
        fault = self.faults.choose(arrival.seq, arrival.key, self.book.turn(arrival.key))
        if fault is not None and not fault.accepts:
            return await self._decide(arrival, fault.answer, fault)
        try:
            self._admit(request)
            self._check_key(arrival)
            checked = _checked(arrival, request.body)
        except Refused as refused:
            return await self._decide(arrival, refused.answer)
        standing = self.book.keys.look_up(arrival.key, checked.fingerprint, self.book.clock.now())
        match standing:
            case Remembered(email_id=email_id):
                return await self._replay(arrival, email_id, fault)
            case Standing.IN_PROGRESS:
                return await self._decide(arrival, answers.IN_PROGRESS)
            case Standing.OTHER_PAYLOAD:
                return await self._decide(arrival, answers.OTHER_PAYLOAD)
            case Standing.FREE:
                return await self._accept(arrival, checked, fault)

    def get_email(self, request: Request, email_id: str) -> Reply:
        """``GET /emails/{id}``: an accepted mail as Resend shows it; not recorded."""
        try:
            self._authorise(request)
        except Refused as refused:
            return Reply(refused.answer)
        if not _is_uuid(email_id):
            return Reply(answers.INVALID_EMAIL_ID)
        found = self.book.email(email_id)
        return Reply(answers.NO_SUCH_EMAIL if found is None else _shown(found))

    async def refuse(self, request: Request, refusal: Answer, body_bytes: int) -> Reply:
        """Notes a request that is refused unread: wrong path, wrong method, too large."""
        seq = self._note_arrival(request, {}, None, body_bytes)
        return await self._decide(Arrival(seq, request.header(KEY_HEADER), refusal), refusal)

    def _arrive(self, request: Request) -> Arrival:
        content: dict[str, Any] | Answer
        try:
            content = values = mail.parse(request.body)
        except Refused as refused:
            content, values = refused.answer, {}
        digest = hashlib.sha256(request.body).hexdigest()
        seq = self._note_arrival(request, values, digest, len(request.body))
        return Arrival(seq, request.header(KEY_HEADER), content)

    def _note_arrival(
        self, request: Request, values: dict[str, Any], digest: str | None, size: int
    ) -> int:
        seq, subject = self.book.next_seq(), values.get("subject")
        self.book.note(
            Received(
                at=time.time(),
                clock=self.book.clock.now(),
                seq=seq,
                connection=request.connection,
                method=request.method,
                path=request.path,
                key=request.header(KEY_HEADER),
                body_sha256=digest,
                body_bytes=size,
                to=mail.recipients_of(values.get("to")),
                subject=subject if isinstance(subject, str) else None,
            )
        )
        return seq

    def _admit(self, request: Request) -> None:
        self._authorise(request)
        if self._rate_limit is not None and not self._rate_limit.take():
            raise Refused(
                answers.rate_limited(
                    self._rate_limit.per_second, self._rate_limit.headers(refused=True)
                )
            )

    def _authorise(self, request: Request) -> None:
        scheme, _, token = (request.header(b"authorization") or "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise Refused(answers.MISSING_API_KEY)
        wanted = self.settings.api_key
        if wanted is not None and not hmac.compare_digest(token.encode(), wanted.encode()):
            raise Refused(answers.INVALID_API_KEY)

    def _check_key(self, arrival: Arrival) -> None:
        if arrival.key is None or not self.settings.keeps_keys:
            return
        if not 1 <= len(arrival.key) <= MAX_KEY_LENGTH:
            raise Refused(answers.INVALID_IDEMPOTENCY_KEY)

    async def _accept(self, arrival: Arrival, checked: Mail, fault: Fault | None) -> Reply:
        """Takes the mail for delivery; until the record has it, its key is in progress."""
        keys, email_id = self.book.keys, str(uuid.uuid4())
        keys.reserve(arrival.key)
        try:
            if self.settings.latency_seconds:
                await asyncio.sleep(self.settings.latency_seconds)
            answer = answers.accepted(email_id)
            reply = await self._decide(arrival, answer, fault, email_id=email_id, checked=checked)
        finally:
            keys.release(arrival.key)
        return await self._made_late(reply)

    async def _replay(self, arrival: Arrival, email_id: str, fault: Fault | None) -> Reply:
        answer = answers.accepted(email_id)
        return await self._made_late(await self._decide(arrival, answer, fault, email_id=email_id))

    async def _made_late(self, reply: Reply) -> Reply:
        if reply.manner is Manner.LATE:
            await asyncio.sleep(self.faults.late_seconds)
        return reply

    async def _decide(
        self,
        arrival: Arrival,
        honest: Answer | None,
        fault: Fault | None = None,
        *,
        email_id: str | None = None,
        checked: Mail | None = None,
    ) -> Reply:
        """Notes what becomes of a request, waits for the disk, and hands out the reply."""
        reply = self._spoiled(arrival.seq, honest, fault)
        seen = None if reply.manner in _NO_STATUS else reply.answer
        self.book.note(
            Decided(
                at=time.time(),
                clock=self.book.clock.now(),
                seq=arrival.seq,
                key=arrival.key,
                accepted=checked is not None,
                replayed=email_id is not None and checked is None,
                email_id=email_id,
                status=None if seen is None else seen.status,
                name=None if seen is None else seen.name,
                fault=None if fault is None else fault.name,
                fingerprint=None if checked is None else checked.fingerprint,
            ),
            None if checked is None else checked.line,
        )
        await self.book.synced()
        return reply

    def _spoiled(self, seq: int, honest: Answer | None, fault: Fault | None) -> Reply:
        answer = honest if fault is None or fault.answer is None else fault.answer
        manner = Manner.ANSWER if fault is None else fault.manner
        if answer is not None and self._rate_limit is not None and answer.status != 429:
            answer = answer.with_headers(self._rate_limit.headers(refused=False))
        return Reply(answer, manner, seq, self.faults.drip_seconds)


def _checked(arrival: Arrival, body: bytes) -> Mail:
    if isinstance(arrival.content, Answer):
        raise Refused(arrival.content)
    return mail.check(arrival.content, body)


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False


def _shown(found: Decided) -> Answer:
    sent = found.mail or {}
    created = time.strftime("%Y-%m-%d %H:%M:%S+00", time.gmtime(found.clock))
    lists = {name: sent.get(name) and mail.recipients_of(sent[name]) for name in _LISTS}
    texts = {name: sent.get(name) for name in ("from", "subject", "html", "text", "tags")}
    return answers.success(
        {
            "object": "email",
            "id": found.email_id,
            "created_at": created,
            **lists,
            **texts,
            "last_event": "delivered",
        }
    )
