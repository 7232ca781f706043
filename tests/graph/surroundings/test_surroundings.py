"""Code that workers run finds what it finds here, though they import modules anew."""

from __future__ import annotations

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
from netsplit.graph.surroundings.settings import settings
from netsplit.graph.surroundings.surroundings import surroundings_of
from tests.graph.recording import kept_in_a_module as kept

WORKER = """
import sys, cloudpickle, torch
surroundings, payload = cloudpickle.loads(open(sys.argv[1], "rb").read())
surroundings.take()
cloudpickle.dump(cloudpickle.loads(payload)(), open(sys.argv[1], "wb"))
"""
PAYLOADS = (kept.Factor, kept.Whole(), nn.LayerNorm(2))


def elsewhere(function: Any, path: Path) -> Any:
    """What a function returns in a new process, which was told of this one's surroundings."""
    path.write_bytes(cloudpickle.dumps((surroundings_of(PAYLOADS), cloudpickle.dumps(function))))
    subprocess.run(
        [sys.executable, "-c", WORKER, str(path)], check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    return cloudpickle.loads(path.read_bytes())


def results() -> list[Any]:
    x = torch.ones(2, requires_grad=True)
    y = kept.Factor.apply(x)
    y.sum().backward()
    norm = nn.LayerNorm(2)(torch.tensor([1.0, 2.0]))
    return [y.tolist(), x.grad.tolist(), kept.Whole()(x).tolist(), norm.tolist(), settings()]


def test_globals_classes_libraries_and_settings_are_as_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "SCALE", 2.0)
    monkeypatch.setattr(kept.Factor, "factor", 4.0)
    monkeypatch.setitem(kept.OPTIONS, "k", 3.0)
    monkeypatch.setitem(kept.ACTS, "act", lambda x: x + kept.SCALE)
    original = nn.LayerNorm.forward

    @functools.wraps(original)
    def doubled(self: nn.LayerNorm, x: Tensor) -> Tensor:
        return original(self, x) * 2

    monkeypatch.setattr(nn.LayerNorm, "forward", doubled)
    before = torch.get_float32_matmul_precision()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_float32_matmul_precision("high")
    torch.backends.mkldnn.enabled = False
    try:
        assert elsewhere(results, tmp_path / "message") == results()
    finally:
        torch.backends.mkldnn.enabled = True
        torch.set_float32_matmul_precision(before)
        torch.use_deterministic_algorithms(False)


def test_only_what_may_differ_is_sent() -> None:
    sent = surroundings_of([kept.Factor])
    places = [str(place) for place, _ in cloudpickle.loads(sent.values)]
    assert sorted(places) == ["'SCALE' of tests.graph.recording.kept_in_a_module", "'factor' of Factor"]
    assert not sent.unsent


def test_what_cannot_be_sent_is_refused_where_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    surroundings_of([kept.Locked()]).take()
    monkeypatch.setitem(kept.LOCKED, "k", 3.0)
    sent = surroundings_of([kept.Locked()])
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"'LOCKED' of .*kept_in_a_module has changed since its module"):
        sent.take()


PRECISION = """
import sys, cloudpickle, torch
from netsplit.graph.surroundings.settings import settings, take_settings
exec(sys.argv[1])
cloudpickle.dump(settings(), open(sys.argv[2], "wb"))
"""
TAKEN = """
import sys, cloudpickle
from netsplit.graph.surroundings.settings import settings, take_settings
given = cloudpickle.loads(open(sys.argv[1], "rb").read())
take_settings(given)
here = settings()
print({name: (value, here.get(name)) for name, value in given.items() if here.get(name) != value})
"""


@pytest.mark.parametrize(
    ("set_here", "name", "value"),
    [
        ("torch.backends.cuda.matmul.fp32_precision = 'tf32'", "cuda.matmul.fp32_precision", "tf32"),
        ("torch.backends.cudnn.conv.fp32_precision = 'ieee'", "cudnn.conv.fp32_precision", "ieee"),
        ("torch.set_float32_matmul_precision('high')", "precision", "high"),
    ],
)
def test_precision_is_as_here_by_its_newer_and_its_older_names(
    set_here: str, name: str, value: str, tmp_path: Path
) -> None:
    """A process in which both were used cannot be put back: each has its own."""
    path, env = str(tmp_path / "settings"), {"PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", PRECISION, set_here, path], check=True, env=env)
    assert cloudpickle.loads(Path(path).read_bytes())[name] == value
    done = subprocess.run(
        [sys.executable, "-c", TAKEN, path], check=True, env=env, capture_output=True, text=True
    )
    assert done.stdout.strip() == "{}"
