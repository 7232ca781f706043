"""Any training command on two hosts that this machine pretends to be, with a link of a given rate between.

    python -m benchmarks.two_hosts --rate 200 -- -m runners.train experiment=quick partitioner=balanced
    python -m benchmarks.two_hosts --pull-after 90 --pull-for 10 -- -m runners.train ... resume=auto

The words after -- are Python's; where the controller is and that its workers are started elsewhere is added
to them. Needs Linux, root, iproute2 and util-linux; docs/multi_machine.md says what is measured with it.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

from benchmarks._command import command_parser
from benchmarks.two_hosts.agents import PORT, Agents, carried_out
from benchmarks.two_hosts.hosts import TwoHosts, missing

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    parser = command_parser("two_hosts", __doc__)
    parser.add_argument(
        "--rate", type=float, default=200.0, help="speed of the link, in Mbit/s, each direction"
    )
    parser.add_argument(
        "--devices", type=int, nargs=2, default=(1, 1), help="capacity of each host, in rank order"
    )
    parser.add_argument("--pull-after", type=float, help="seconds until the cable is pulled")
    parser.add_argument("--pull-for", type=float, default=10.0, help="seconds until it is plugged in again")
    parser.add_argument("command", nargs="+", help="arguments of Python: -m runners.train ...")
    asked = parser.parse_args(argv)
    if lacking := missing():
        print(f"cannot make two hosts here: {lacking}.", file=sys.stderr)
        return 2
    with ExitStack() as opened:
        hosts = opened.enter_context(TwoHosts(asked.rate))
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        if asked.pull_after is not None:
            for seconds, what in (
                (asked.pull_after, hosts.pull),
                (asked.pull_after + asked.pull_for, hosts.plug),
            ):
                timer = threading.Timer(seconds, what)
                timer.start()
                opened.callback(timer.cancel)
        where = [f"cluster.host={hosts.a.address}", f"cluster.port={PORT}", "cluster.external=true"]
        agents = Agents(hosts, tuple(asked.devices), folder)
        command = [sys.executable, *asked.command, *where]
        code = carried_out(agents, command, Path.cwd(), lambda line: print(line, end="", flush=True))
        if code:
            print(agents.said(), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
