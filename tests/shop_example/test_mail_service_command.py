"""The mail-service command: its options, its ready line, its end."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from shop_example.mail_service import main
from shop_example.mail_service.settings import default_record
from tests.shop_example.mail_client import Client, control, email, post, request
from tests.shop_example.mail_process import mail_process, start

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_stops_on_a_signal(
    tmp_path: Path, signal_number: signal.Signals
) -> None:
    """One ready line on stdout, the record's path on stderr, exit code 0."""
    record = tmp_path / "deep" / "record.jsonl"
    with start("--port", "0", "--record", str(record)) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal_number)
        rest, complaints = process.communicate(timeout=20)
    assert line.startswith("mail-service listening on http://127.0.0.1:")
    assert (rest, process.returncode) == ("", 0)
    assert complaints == f"mail-service records to {record}\n"


async def test_json_names_url_and_record(tmp_path: Path) -> None:
    """The ready line for programs."""
    record = tmp_path / "record.jsonl"
    with mail_process(record) as service:
        assert (await post(service.url)).status == 200
        assert service.record == record


async def test_options_reach_the_service(tmp_path: Path) -> None:
    """Keys, window, key, faults, seed and rate limit, as the state and the answers show them."""
    options = (
        *("--no-keys", "--key-window-seconds", "60", "--api-key", "re_right"),
        *("--faults", "500_after=0.5", "--seed", "4", "--rate-limit", "1/s", "--host", "::1"),
    )
    with mail_process(tmp_path / "record.jsonl", *options) as service:
        assert urlsplit(service.url).hostname == "::1"
        state = (await control(service.url, "GET", "/state")).json
        plan = (await control(service.url, "GET", "/faults")).json
        async with await Client.connect(service.url) as client:
            assert (await client.post(token="re_wrong")).status == 403
            assert "ratelimit-limit" in (await client.post(token="re_right")).headers
    assert (state["keeps_keys"], state["key_window_seconds"]) == (False, 60)
    assert (plan["rates"], plan["seed"]) == ({"500_after": 0.5}, 4)


async def test_the_api_key_may_come_from_the_environment(tmp_path: Path) -> None:
    """So that it stands in no list of processes."""
    record = str(tmp_path / "record.jsonl")
    environment = {**os.environ, "MAIL_SERVICE_API_KEY": "re_right"}
    with start("--port", "0", "--json", "--record", record, **environment) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        async with await Client.connect(url) as client:
            assert (await client.post(token="re_wrong")).status == 403
            assert (await client.post(token="re_right")).status == 200
        process.terminate()


@pytest.mark.parametrize(
    "options",
    [
        ["--faults", "nonsense=1"],
        ["--faults", "stall=2"],
        ["--port", "70000"],
        ["--port", "smtp"],
        ["--key-window-seconds", "-1"],
        ["--rate-limit", "0.5"],
        ["--latency-ms", "nan"],
    ],
)
def test_wrong_use_is_explained(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and a line that names the option."""
    with pytest.raises(SystemExit) as wrong:
        main(options)
    assert wrong.value.code == 2
    assert f"argument {options[0]}: " in capsys.readouterr().err


def test_a_taken_port_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1; the line names the port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["--port", port, "--record", str(tmp_path / "record.jsonl")]) == 1
    complaint = capsys.readouterr().err
    assert complaint.startswith(f"mail-service: can't listen on 127.0.0.1, port {port}: ")
    assert complaint.count("\n") == 1


def test_a_record_in_use_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1; the line names the remedy."""
    record = tmp_path / "record.jsonl"
    with mail_process(record):
        assert main(["--port", "0", "--record", str(record)]) == 1
    assert "give another file with --record" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits another process")
async def test_a_full_disk_ends_it_with_a_line(tmp_path: Path) -> None:
    """No answer to the mail that didn't fit; exit code 1; the line names file and cause.

    What was answered before is replayed by the next service on the same record.
    """
    record = tmp_path / "record.jsonl"
    with mail_process(record) as service:
        first = await post(service.url, key="email-order-7")
        full = size(record) + 100
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (full, full))
        async with await Client.connect(service.url) as client:
            client.send(request(email(), "email-order-8"))
            assert await client.rest() == b""
        _, complaint = service.process.communicate(timeout=20)
        assert service.process.returncode == 1
    assert complaint.startswith(f"mail-service: can't write the record {record}: ")
    with mail_process(record) as service:
        assert (await post(service.url, key="email-order-7")).json == first.json
        assert (await post(service.url, key="email-order-8")).status == 200


def test_the_default_record_is_in_the_users_data_directory(tmp_path: Path) -> None:
    """XDG_DATA_HOME if it is set, else ~/.local/share."""
    own = default_record({"XDG_DATA_HOME": str(tmp_path)})
    assert own == tmp_path / "shop-example" / "mail-service.jsonl"
    assert default_record({}).parts[-4:-2] == (".local", "share")


def size(record: Path) -> int:
    """Bytes on disk."""
    return record.stat().st_size
