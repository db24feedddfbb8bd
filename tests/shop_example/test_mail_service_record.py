"""The mail-service's record: on disk before an answer leaves, and enough to go on after a crash."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from shop_example.mail_service import journal
from shop_example.mail_service.events import Closed, Cut, Decided, Opened, Received
from shop_example.mail_service.faults import FAULTS
from shop_example.mail_service.record import RecordError, Tally, read_record
from tests.shop_example.mail_client import (
    Client,
    control,
    email,
    events,
    post,
    recorded,
    request,
    serving,
    tally,
)
from tests.shop_example.mail_process import mail_process
from tests.waiting import aeventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shop_example.mail_service.events import Event

KEY = "email-order-7"


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Where the service under test records."""
    return tmp_path / "record.jsonl"


class SlowDisk:
    """Takes the place of the write and sync: counts them, and holds them up while it is shut."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.syncs = 0
        self._write_and_sync = journal._write_and_sync

    def __call__(self, descriptor: int, data: bytes) -> None:
        assert self.open.wait(10)
        self.syncs += 1
        self._write_and_sync(descriptor, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    """A disk that can be held up."""
    disk = SlowDisk()
    monkeypatch.setattr(journal, "_write_and_sync", disk)
    yield disk
    disk.open.set()


async def test_no_byte_of_an_answer_leaves_before_the_record_is_synced(
    record: Path, disk: SlowDisk
) -> None:
    """While the disk doesn't answer, the client doesn't get an answer either."""
    async with serving(record) as server, await Client.connect(server.url) as client:
        await client.post()
        disk.open.clear()
        client.send(request(email(), KEY))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.reader.read(1)
        assert tally(record).by_key.keys() == {None}
        disk.open.set()
        seen = await client.answer()
        assert tally(record).by_key[KEY].email_ids == [seen.json["id"]]


async def test_requests_that_wait_at_once_share_one_sync(record: Path, disk: SlowDisk) -> None:
    """A hundred clients, three syncs: the first one's, and at most two for all the others."""
    async with serving(record) as server:
        await post(server.url)
        disk.open.clear()
        before = disk.syncs
        posts = asyncio.gather(*(post(server.url, key=f"key-{n}") for n in range(100)))
        await aeventually(lambda: _reached(server._book.counts["accepted"], 101))
        disk.open.set()
        assert {seen.status for seen in await posts} == {200}
        assert disk.syncs - before <= 3
    assert tally(record).accepted == 101


async def test_a_record_that_cannot_be_written_ends_the_service_without_an_answer(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk: the connection is closed, and the server says why it can't go on."""
    async with serving(record) as server, await Client.connect(server.url) as client:
        await client.post()

        def full(_descriptor: int, _data: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(journal, "_write_and_sync", full)
        client.send(request(email(), KEY))
        assert await client.rest() == b""
        assert await post_fails(server.url)
        with pytest.raises(RecordError, match="No space left on device"):
            server.failed.result()


async def test_a_torn_last_line_is_cut_off_and_ignored(record: Path) -> None:
    """What a crash left half written never happened; all before it did."""
    async with serving(record) as server:
        first = await post(server.url, key=KEY)
    whole = contents(record)
    overwrite(record, whole + b'{"event":"decided","at":1.5,"seq":2,"key":"email-order-8","accep')
    assert tally(record).requests == 1
    async with serving(record) as server:
        assert contents(record).startswith(whole + b'{"event":"opened"')
        assert (await post(server.url, key=KEY)).json == first.json
    assert [event.seq for event in events(record, Decided)] == [1, 2]
    assert tally(record).starts == 2


async def test_a_record_that_is_torn_before_its_first_line_is_started_anew(record: Path) -> None:
    """A crash during the very first write leaves a usable file."""
    overwrite(record, b'{"event":"opened"')
    async with serving(record) as server:
        assert (await post(server.url)).status == 200
    assert tally(record).accepted == 1


@pytest.mark.parametrize("line", [b"not JSON", b"[]", b'{"event":"decided"}', b"{}"])
async def test_a_file_that_is_no_record_is_refused_with_its_line(record: Path, line: bytes) -> None:
    """The error names file, line and remedy, and the file is left as it was."""
    async with serving(record) as server:
        await post(server.url)
    whole = contents(record)
    overwrite(record, line + b"\n" + whole)
    with pytest.raises(RecordError, match=r"line 1: .*move the file away"):
        serving(record)
    overwrite(record, whole)
    async with serving(record):
        pass


async def test_events_of_a_later_version_are_passed_over(record: Path) -> None:
    """An unknown kind of event, or a new field of a known one, disturbs no reader."""
    async with serving(record) as server:
        first = await post(server.url, key=KEY)
    lines = contents(record).replace(b'{"event":', b'{"new_field":1,"event":')
    overwrite(record, b'{"event":"news","at":1}\n' + lines)
    async with serving(record) as server:
        seen = await post(server.url, key=KEY)
        assert (await control(server.url, "GET", "/state")).json["accepted"] == 1
        async with await Client.connect(server.url) as client:
            assert (await client.call("GET", f"/emails/{first.json['id']}")).status == 200
    assert seen.json == first.json


async def test_two_services_never_share_a_record(record: Path) -> None:
    """The second is refused and told what to do."""
    async with serving(record):
        with pytest.raises(RecordError, match=r"another mail-service .* --record"):
            serving(record)


@pytest.mark.parametrize("place", [".", "/dev/null"])
async def test_a_record_that_cannot_be_one_is_named(tmp_path: Path, place: str) -> None:
    """A directory or a device in the place of the file."""
    with pytest.raises(RecordError, match="--record"):
        serving(tmp_path / place)


async def test_the_record_is_for_its_owner_and_holds_no_api_key(record: Path) -> None:
    """Mails are private, and the key is nobody's business."""
    async with serving(record) as server, await Client.connect(server.url) as client:
        await client.post(token="re_secret_1")
    assert mode(record) == 0o600
    assert b"re_secret" not in contents(record)


async def test_a_request_is_on_record_before_it_is_processed(record: Path) -> None:
    """A service that is killed in the middle leaves the request, undecided, and its key free."""
    with mail_process(record, "--latency-ms", "60000") as service:
        async with await Client.connect(service.url) as client:
            client.send(request(email(), KEY))
            await recorded(record, Received)
            service.kill()
    count = tally(record).by_key[KEY]
    assert (count.requests, count.accepted, count.undecided) == (1, 0, 1)
    async with serving(record) as server:
        assert (await post(server.url, key=KEY)).status == 200
        assert (await control(server.url, "GET", "/state")).json["in_progress"] == 0
    count = tally(record).by_key[KEY]
    assert (count.requests, count.accepted, count.undecided, count.surplus) == (2, 1, 1, 0)


async def test_a_request_that_is_cut_is_on_record_and_is_no_request(record: Path) -> None:
    """Half a body, then half a head: two cuts, the first with its key, nothing received."""
    data = request(email(), KEY)
    async with serving(record) as server:
        for part in (data[:-10], data[:40]):
            async with await Client.connect(server.url) as client:
                client.send(part)
                await client.writer.drain()
                client.writer.write_eof()
                assert await client.rest() == b""
        cuts = await recorded(record, Cut, 2)
    assert [(cut.path, cut.key) for cut in cuts] == [("/emails", KEY), (None, None)]
    count = tally(record).by_key[KEY]
    assert (count.requests, count.cut) == (0, 1)


@pytest.mark.parametrize("answers_before_the_kill", [1, 37, 400])
async def test_kill_9_under_load_loses_and_repeats_nothing_that_was_answered(
    record: Path, answers_before_the_kill: int
) -> None:
    """Every id that a client holds is in the record and is replayed after the restart.

    And every mail of the record that nobody got an answer for is replayed as well.
    """
    answered: dict[str, str] = {}
    with mail_process(record) as service:
        clients = [_keep_posting(service.url, worker, answered) for worker in range(20)]
        load = asyncio.gather(*clients)
        await aeventually(lambda: _reached(len(answered), answers_before_the_kill))
        service.kill()
        await load
    accepted = {event.key: event.email_id for event in events(record, Decided) if event.accepted}
    assert answered.items() <= accepted.items()
    with mail_process(record) as service:
        replays = await asyncio.gather(
            *(post(service.url, email(subject=key), key) for key in accepted)
        )
    assert [seen.json["id"] for seen in replays] == list(accepted.values())
    assert tally(record).accepted == len(accepted)


async def _keep_posting(url: str, worker: int, answered: dict[str, str]) -> None:
    """Posts mail after mail, each under its own key, until the service is gone."""
    async with await Client.connect(url) as client:
        for number in range(10_000):
            key = f"email-order-{worker}-{number}"
            try:
                seen = await client.post(email(subject=key), key)
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            answered[key] = seen.json["id"]


async def test_a_stop_keeps_everything(record: Path) -> None:
    """SIGTERM under load: what was accepted is on record, what was answered all the more."""
    answered: dict[str, str] = {}
    with mail_process(record) as service:
        load = asyncio.gather(
            *(_keep_posting(service.url, worker, answered) for worker in range(5))
        )
        await aeventually(lambda: _reached(len(answered), 20))
        service.process.terminate()
        await load
        assert service.process.wait(10) == 0
    accepted = {event.key: event.email_id for event in events(record, Decided) if event.accepted}
    assert answered == accepted


async def test_a_judge_needs_nothing_but_the_file(record: Path) -> None:
    """The counting that docs/mail-service.md shows, with the standard library alone."""
    async with serving(
        record, rates={"drop_after_accept": 0.3, "503_before": 0.2}, seed=5
    ) as server:
        for number in range(40):
            key = f"email-order-{number % 30}"
            async with await Client.connect(server.url) as client:
                client.send(request(email(subject=key), key))
                client.writer.write_eof()
                await client.rest()
    requests: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    for line in contents(record).splitlines():
        event = json.loads(line)
        if event["event"] == "received" and event["path"] == "/emails":
            requests[event["key"]] += 1
        elif event["event"] == "decided":
            accepted[event["key"]] += event["accepted"]
    found = tally(record).by_key
    assert {key: count.requests for key, count in found.items()} == requests
    assert {key: count.accepted for key, count in found.items()} == accepted
    assert max(accepted.values()) == 1


def received(seq: int, connection: int = 1, key: str | None = KEY) -> Received:
    """A request's arrival."""
    return Received(1.0, 1.0, seq, connection, "POST", "/emails", key, f"sha-{seq}", 9, None, None)


def decided(seq: int, fault: str | None = None, status: int | None = 200) -> Decided:
    """A new mail (the first) or a replay, or a refusal when the status is no 200."""
    good = status in (200, None)
    return Decided(
        at=1.0,
        clock=1.0,
        seq=seq,
        key=KEY,
        accepted=good and seq == 1,
        replayed=good and seq > 1,
        email_id="id" if good else None,
        status=status,
        name=None,
        fault=fault,
    )


def closed(connection: int, by: str = "client") -> Closed:
    """The end of a connection."""
    return Closed(1.0, connection, answered=True, by=by, reset=False)


OPENED = Opened(1.0, 1, 1, keeps_keys=True, key_window_seconds=1.0)


@pytest.mark.parametrize(
    ("story", "surplus"),
    [
        ([received(1), decided(1)], 0),
        ([received(1), decided(1), received(2), decided(2)], 1),
        ([received(1), decided(1, "drop_after_accept", None), received(2), decided(2)], 0),
        ([received(1), decided(1, "503_before", 503), received(2), decided(2), received(3)], 1),
        ([received(1), decided(1, None, 429), received(2), decided(2)], 0),
        ([received(1), received(2, 2), decided(1), decided(2)], 1),
        ([received(1), decided(1), closed(1), received(2, 2), decided(2)], 0),
        ([received(1), decided(1), closed(1, "service"), received(2, 2), decided(2)], 1),
        ([received(1), closed(1), received(2, 2), decided(1), decided(2)], 0),
        ([received(1), OPENED, received(2, 2), decided(2)], 0),
        ([received(1), decided(1), OPENED, received(2, 2), decided(2)], 0),
        ([received(1), decided(1), received(3, 1, "k"), OPENED, received(2, 2), decided(2)], 1),
        ([received(1, 1, None), received(2, 1, None)], 0),
    ],
    ids=[
        "one request",
        "a repeat for no reason",
        "a repeat after a fault",
        "two repeats after one fault",
        "a repeat after a refusal",
        "a twin",
        "a repeat after the client went",
        "a repeat after the service closed a clean connection",
        "the client went before the decision",
        "a restart in the middle of the request",
        "a restart right after the answer",
        "a restart long after the answer",
        "requests without a key",
    ],
)
def test_a_repeat_is_surplus_unless_the_request_before_it_met_something(
    story: list[Event], surplus: int
) -> None:
    """A fault, a refusal, a vanished client or a restart explain one repeat each."""
    assert Tally.of(story).surplus == surplus


async def test_a_sender_that_repeats_only_after_trouble_is_never_surplus(record: Path) -> None:
    """Every fault there is, at random, and clients that go on until they hold an id.

    The record explains each of their repeats, and has one mail for each key.
    """
    async with serving(record) as server:
        plan = {"rates": dict.fromkeys(FAULTS, 0.02), "drip_seconds": 0.001, "late_seconds": 0.01}
        assert (await control(server.url, "PUT", "/faults", plan)).status == 200
        keys = [f"email-order-{number}" for number in range(60)]
        await asyncio.gather(*(_post_until_answered(server.url, key) for key in keys))
    whole = tally(record)
    assert {key: count.accepted for key, count in whole.by_key.items()} == dict.fromkeys(keys, 1)
    assert (whole.surplus, whole.duplicates) == (0, 0)
    assert len(whole.faults) > 10


async def _post_until_answered(url: str, key: str) -> None:
    """Repeats a request after each fault, refusal or silence, until its answer has an id."""
    while True:
        with contextlib.suppress(OSError, EOFError, ValueError, KeyError, TimeoutError):
            async with asyncio.timeout(1):
                seen = await post(url, email(subject=key), key)
            assert seen.json["id"]
            return


def test_a_tally_counts_what_it_says() -> None:
    """Requests, mails, replays, refusals, faults, bodies and ids per key, and in sum."""
    story: list[Event] = [
        *(OPENED, received(1), decided(1, "stall", None), closed(1)),
        *(received(2, 2), decided(2, None, 422), received(3, 2), decided(3), received(4, 2)),
        Cut(1.0, 3, "/emails", KEY, 5),
    ]
    whole = Tally.of(story)
    count = whole.by_key[KEY]
    assert (count.requests, count.accepted, count.replayed) == (4, 1, 1)
    assert (count.refused, count.undecided, count.cut) == (1, 1, 1)
    assert (count.email_ids, count.faults) == (["id"], {"stall": 1})
    assert count.body_sha256s == {"sha-1", "sha-2", "sha-3", "sha-4"}
    assert (whole.requests, whole.accepted, whole.replayed, whole.starts) == (4, 1, 1, 1)
    assert (whole.faults, whole.duplicates) == ({"stall": 1}, 0)


def test_a_missing_record_is_a_missing_file(tmp_path: Path) -> None:
    """Not an empty one: a judge must not take absence for peace."""
    with pytest.raises(FileNotFoundError):
        list(read_record(tmp_path / "nowhere.jsonl"))


def contents(record: Path) -> bytes:
    """The record as it is on disk."""
    return record.read_bytes()


def overwrite(record: Path, data: bytes) -> None:
    """Another content for the record."""
    record.write_bytes(data)


def mode(record: Path) -> int:
    """Who may read and write the record."""
    return record.stat().st_mode & 0o777


async def _reached(number: int, wanted: int) -> bool:
    return number >= wanted


async def post_fails(url: str) -> bool:
    """Whether a further request gets no answer either."""
    async with await Client.connect(url) as client:
        client.send(request(email()))
        return await client.rest() == b""
