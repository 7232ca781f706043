"""What the machine has: versions, the GPU as NVML and as CUDA have it, bytes of a context."""

from __future__ import annotations

from typing import Any

import torch

import netsplit

__all__ = ["versions"]


def versions(device: str) -> dict[str, Any]:
    """Versions; where there is a GPU also its bytes by NVML and by CUDA, and of one process's context."""
    facts: dict[str, Any] = {"netsplit": netsplit.__version__, "torch": torch.__version__, "same_gpu": True}
    if device == "cpu":
        return facts
    import pynvml

    pynvml.nvmlInit()
    count = pynvml.nvmlDeviceGetCount()
    by_uuid = {_uuid(pynvml, i): i for i in range(count)}
    place = by_uuid.get(str(torch.cuda.get_device_properties(0).uuid))
    handle = pynvml.nvmlDeviceGetHandleByIndex(0 if place is None else place)
    before = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    torch.zeros(1, device=device)
    torch.cuda.synchronize()
    after = pynvml.nvmlDeviceGetMemoryInfo(handle)
    free, total = torch.cuda.mem_get_info(0)
    torch.randn(512, 512, device=device) @ torch.randn(512, 512, device=device)
    torch.nn.functional.conv2d(
        torch.randn(8, 16, 64, 64, device=device), torch.randn(16, 16, 3, 3, device=device)
    )
    torch.cuda.synchronize()
    return facts | {
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "gpu": torch.cuda.get_device_name(0),
        "gpus": count,
        "same_gpu": place == 0,
        "nvml_total_bytes": int(after.total),
        "cuda_total_bytes": total,
        "free_bytes_beside_context": free,
        "context_bytes": int(after.used) - before,
        "bytes_after_first_kernels": free - torch.cuda.mem_get_info(0)[0],
    }


def _uuid(pynvml: Any, index: int) -> str:
    """NVML's "GPU-..." as CUDA has it, without the first four letters."""
    uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
    return (uuid.decode() if isinstance(uuid, bytes) else str(uuid)).removeprefix("GPU-")
