"""Host tags name what a result depends on, and leave out what is not there."""

from __future__ import annotations

import pytest

from netsplit.tracking import host


def test_versions_and_machine_are_named() -> None:
    tags = host.host_tags()
    assert {"version.python", "version.torch", "version.mlflow", "host.name", "host.cores"} <= set(tags)
    assert all(isinstance(value, str) and value for value in tags.values())


def test_gpus_are_named_in_nvml_order(monkeypatch: pytest.MonkeyPatch) -> None:
    pynvml = pytest.importorskip("pynvml")
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda handle: f"GPU {handle}")
    assert host.gpu_names() == ["GPU 0", "GPU 1"]
