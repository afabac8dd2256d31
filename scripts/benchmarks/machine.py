"""Machine that the benchmark ran on."""

from __future__ import annotations

import datetime
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

from benchmarks.problem import Size


def describe(size: Size) -> dict[str, Any]:
    """Device, cores this process may use, memory, versions, date; the caller fills in the load after."""
    device = jax.devices()[0]
    name = _processor() if device.platform == "cpu" else f"{device.device_kind} beside {_processor()}"
    return {
        "device": name,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory GB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "versions": ", ".join([f"Python {platform.python_version()}", *_versions()]),
        "date": datetime.date.today().isoformat(),
        "load average before and after": [load(), None],
        "sizes": "quick sizes, not to be quoted" if size.quick else f"paired repeats: {size.repeats}",
    }


def load() -> float:
    """Processes that wanted to run over the last minute; beyond the number of cores, the machine was busy."""
    return round(os.getloadavg()[0], 1)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    found = dict(line.split(":", 1) for line in lines if ":" in line)
    fields = {key.strip(): value.strip() for key, value in found.items()}
    name = fields.get("model name") or platform.machine()
    family = f" (family {fields['cpu family']}, model {fields['model']})" if "cpu family" in fields else ""
    return name + family


def _versions() -> list[str]:
    out = []
    for name in ("jax", "dpmcmc", "blackjax", "jax-privacy"):
        try:
            out.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            out.append(f"{name} not installed")
    return out
