"""The leash: no process outlives the demo, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from shop_example.demo.leash import Leash

FOR_EVER = [sys.executable, "-c", "import signal; signal.pause()"]
#: A demo in short: it starts one process, whose output is its own, and waits to be killed.
OWNER = """
import os, signal, sys
from pathlib import Path
from shop_example.demo.leash import Leash
leash = Leash()
with open(os.devnull, "wb") as log:
    leash.start(
        [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"],
        environment=os.environ, directory=Path.cwd(), log=log, stdout=1,
    )
signal.pause()
"""


def test_closing_the_leash_ends_what_it_has_started(tmp_path: Path) -> None:
    """Whatever it is doing."""
    with (tmp_path / "log").open("wb") as log, Leash() as leash:
        child = leash.start(FOR_EVER, environment=os.environ, directory=tmp_path, log=log)
        assert child.poll() is None
    assert child.wait(10) == -signal.SIGKILL


def test_a_killed_owner_takes_its_processes_with_it() -> None:
    """``kill -9`` of the demo leaves nothing that runs: nobody holds its output open any more."""
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        owner.kill()
        assert owner.stdout.read() == b""


def test_a_process_on_the_leash_logs_to_its_file(tmp_path: Path) -> None:
    """Its output and its errors, in its folder and with its environment."""
    code = "import os, sys; print(os.environ['WORD'], os.getcwd()); sys.exit('an error')"
    with (tmp_path / "log").open("wb") as log, Leash() as leash:
        environment = {**os.environ, "WORD": "hello"}
        child = leash.start(
            [sys.executable, "-c", code], environment=environment, directory=tmp_path, log=log
        )
        child.wait(10)
    assert (tmp_path / "log").read_text().split() == ["hello", str(tmp_path), "an", "error"]
