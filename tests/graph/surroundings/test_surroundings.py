"""Code that workers run finds what it finds here, though they import modules anew."""

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from torch import Tensor, nn

from netsplit.errors import ConfigError
from netsplit.graph.recording.whole import by_value, carried_modules
from tests.graph.recording import kept_in_a_module as kept

WORKER = """
import sys, cloudpickle
cloudpickle.dump(cloudpickle.loads(open(sys.argv[1], "rb").read())(), open(sys.argv[1], "wb"))
"""


def elsewhere(function: Any, path: Path) -> Any:
    """What a function returns in a new process, which imports modules anew."""
    with by_value(carried_modules([function])):
        path.write_bytes(cloudpickle.dumps(function))
    subprocess.run(
        [sys.executable, "-c", WORKER, str(path)], check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    return cloudpickle.loads(path.read_bytes())


def test_globals_and_attributes_of_classes_are_as_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "SCALE", 2.0)
    monkeypatch.setattr(kept.Factor, "factor", 4.0)
    monkeypatch.setitem(kept.OPTIONS, "k", 3.0)
    monkeypatch.setitem(kept.ACTS, "act", lambda x: x + 2)
    factor, whole = kept.Factor, kept.Whole()

    def results() -> list[Any]:
        x = torch.ones(2, requires_grad=True)
        y = factor.apply(x)
        y.sum().backward()
        return [y.tolist(), x.grad.tolist(), whole(x).tolist()]

    assert elsewhere(results, tmp_path / "message") == results() == [[2, 2], [4, 4], [9, 9]]
    assert not cloudpickle.list_registry_pickle_by_value()


def test_what_cannot_be_sent_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert carried_modules([kept.Locked()]) == []
    (record,) = caplog.records
    assert "Workers import tests.graph.recording.kept_in_a_module afresh" in record.message


def test_a_function_of_torch_that_was_replaced_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    original = nn.LayerNorm.forward

    @functools.wraps(original)
    def doubled(self: nn.LayerNorm, x: Tensor) -> Tensor:
        return original(self, x) * 2

    monkeypatch.setattr(nn.LayerNorm, "forward", doubled)
    with pytest.raises(ConfigError, match=r"'forward' of LayerNorm was replaced by .*test_surroundings.py"):
        carried_modules([nn.LayerNorm(2)])


PRECISION = """
import sys, cloudpickle, torch
from netsplit.graph.recording.whole import settings, take_settings
exec(sys.argv[1])
cloudpickle.dump(settings(), open(sys.argv[2], "wb"))
"""
TAKEN = """
import sys, cloudpickle
from netsplit.graph.recording.whole import settings, take_settings
given = cloudpickle.loads(open(sys.argv[1], "rb").read())
take_settings(given)
here = settings()
print({name: (value, here.get(name)) for name, value in given.items() if here.get(name) != value})
"""


def test_precision_is_as_here(tmp_path: Path) -> None:
    """By torch's newer name; a process in which the older one was used too cannot be put back."""
    set_here = "torch.backends.cuda.matmul.fp32_precision = 'tf32'"
    path, env = str(tmp_path / "settings"), {"PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", PRECISION, set_here, path], check=True, env=env)
    assert cloudpickle.loads(Path(path).read_bytes())["cuda.matmul.fp32_precision"] == "tf32"
    done = subprocess.run(
        [sys.executable, "-c", TAKEN, path], check=True, env=env, capture_output=True, text=True
    )
    assert done.stdout.strip() == "{}"
