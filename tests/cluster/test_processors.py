"""How many processors a host's workers share: what the system allows them, and what limits their group."""

import math
import os
from pathlib import Path

import pytest

from netsplit.cluster import local
from netsplit.cluster.local import (
    allowed_processors,
    processor_quota,
    shared_processors,
    usable_processors,
)


def system(root: Path, groups: str, files: dict[str, str]) -> Path:
    for path, text in {"proc/self/cgroup": groups, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


V1 = "sys/fs/cgroup/cpu"


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, math.inf),
        ("0::/a/b\n", {"sys/fs/cgroup/a/cpu.max": "5 10\n", "sys/fs/cgroup/a/b/cpu.max": "max 1\n"}, 0.5),
        (
            "5:cpuset:/\n3:cpu,cpuacct:/box\n0::/\n",
            {f"{V1}/cpu.cfs_quota_us": "20", f"{V1}/cpu.cfs_period_us": "10"},
            2.0,
        ),
        ("1:cpu:/\n", {f"{V1}/cpu.cfs_quota_us": "-1", f"{V1}/cpu.cfs_period_us": "10"}, math.inf),
    ],
)
def test_a_group_has_what_it_and_those_above_it_are_given(
    tmp_path: Path, groups: str, files: dict[str, str], quota: float
) -> None:
    assert processor_quota(system(tmp_path, groups, files)) == quota


def test_workers_bound_to_one_processor_each_have_all_of_theirs_together() -> None:
    """As by `taskset`, one for each; two on one processor share it, and a quota is of all."""
    own = [(frozenset({number}), math.inf) for number in (0, 1, 1)]
    assert shared_processors(own) == 2.0
    assert shared_processors([(allowed, 1.5) for allowed, _ in own]) == 1.5
    assert shared_processors([(allowed, 8.0) for allowed, _ in own]) == 2.0


def test_this_process_has_those_it_may_run_on_and_no_more_than_its_quota(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "processor_quota", lambda: math.inf)
    assert usable_processors() == len(allowed_processors()) <= (os.cpu_count() or 1)
    monkeypatch.setattr(local, "processor_quota", lambda: 0.5)
    assert usable_processors() == 0.5
