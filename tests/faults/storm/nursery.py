"""Where consumers are born, and mail services: forks of a process that has everything loaded.

``python -m tests.faults.storm.nursery`` reads a JSON object a line: ``{"number": N, "birth":
{...}}`` for a consumer, ``{"number": N, "program": "outbox", "words": [...], "settings": {...},
"output": FILE}`` for this command, for ``mail-service`` or for ``producer``. It answers with a line
for each thing that happens to one: ``born`` (its process id), ``stopped``, ``signal`` (its name) or
``code``. Any number live side by side. When its input ends, it kills those that still live.

Starting Python and importing all of it takes half a second; a fork takes a hundredth of that.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import sys
from typing import Any

from consumers.email import transport
from outbox.commands import main as outbox
from shop_example.emails import emails
from shop_example.mail_service.command import main as mail_service
from tests.faults.orders import payload
from tests.faults.storm import producer
from tests.faults.storm.life import Birth, live


class Nursery:
    """The children that live, by process id."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._input = b""
        self._wakened, self._waken = os.pipe()
        os.set_blocking(self._waken, False)
        signal.set_wakeup_fd(self._waken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Work until the input ends."""
        while True:
            ready, _, _ = select.select([0, self._wakened], [], [])
            if self._wakened in ready:
                os.read(self._wakened, 4_096)
                self._look_after_children()
            if 0 in ready and not self._read():
                break
        for pid in self._numbers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _read(self) -> bool:
        data = os.read(0, 65_536)
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            self._fork(json.loads(line))
        return bool(data)

    def _fork(self, order: dict[str, Any]) -> None:
        pid = os.fork()
        if pid == 0:
            self._leave_home()
            if "birth" in order:
                live(Birth(**order["birth"]))
            _run(order)
        self._numbers[pid] = order["number"]
        _say(number=order["number"], born=pid)

    def _leave_home(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # The lines to and from the rig are not this process's.
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1):
            os.dup2(nothing, descriptor)

    def _look_after_children(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
                if pid == 0:
                    return
                number = self._numbers[pid]
                if os.WIFSTOPPED(status):
                    _say(number=number, stopped=True)
                    continue
                del self._numbers[pid]
                if os.WIFSIGNALED(status):
                    _say(number=number, signal=signal.Signals(os.WTERMSIG(status)).name)
                else:
                    _say(number=number, code=os.WEXITSTATUS(status))


def _say(**what: object) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def _run(order: dict[str, Any]) -> None:
    """Be this program; does not return."""
    code: object = 70
    try:
        os.environ.update(order["settings"])
        output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(output, 1)
        if order["program"] == "mail-service":
            code = mail_service(order["words"])
        elif order["program"] == "producer":
            code = producer.main(order["words"])
        else:
            sys.argv = ["outbox", *order["words"]]
            outbox()
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def warm_up() -> None:
    """Do once what every process would do first: load, compile and read files."""
    emails.render("email.order_confirmation", payload())
    importlib.import_module("outbox.commands.app")
    transport.certificates()


if __name__ == "__main__":
    warm_up()
    Nursery().serve()
