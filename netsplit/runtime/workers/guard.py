"""Workers and their torchrun agent end when the controller does: a guard process beside each worker.

A worker ends by itself when the connection to its controller does. One that cannot (it was stopped, or
an operator that never returns holds the interpreter) would outlive everybody; its guard does not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import NoReturn

__all__ = ["end_with_controller", "leave", "start_guard"]

_GRACE_S = 2.0  # for a process to end by itself

_guards: list[subprocess.Popen[bytes]] = []

# It sees the connection's end without reading from it, and ends with the worker: it must not keep the
# connection open, from whose end the controller learns that the worker died.
_GUARD = """
import ctypes, os, select, signal, sys, time
fd, worker, agent, grace_s = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(each, signal.SIG_IGN)
poll = select.poll()
poll.register(fd, select.POLLRDHUP)
def agent_lives():
    try:
        os.kill(agent, 0)
        return True
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
while os.getppid() == worker and not poll.poll(1000) and agent_lives():
    pass
if os.getppid() == worker:
    time.sleep(grace_s)
if os.getppid() == worker:
    os.kill(worker, signal.SIGKILL)
"""


def start_guard(connection: int, agent: int) -> None:
    """Guard this process, where the system has the means (Linux).

    Args:
        connection: file descriptor of the connection whose end is this process's.
        agent: process whose end is this process's too.
    """
    if sys.platform != "linux":
        return
    command = [sys.executable, "-I", "-S", "-c", _GUARD, str(connection), str(os.getpid()), str(agent)]
    _guards.append(subprocess.Popen([*command, str(_GRACE_S)], pass_fds=(connection,)))


def end_with_controller() -> None:
    """End this process, the torchrun agent, at once when the controller's end of its standard input closes.

    torchrun alone would look at its workers, who have ended, and stop in seconds.
    """

    def wait() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def leave(code: int) -> NoReturn:
    """End this process and its guard at once, whatever other threads do."""
    for guard in _guards:
        guard.kill()
        guard.wait()
    os._exit(code)
