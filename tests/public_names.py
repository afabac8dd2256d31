"""Public names of the package: ``python -m tests.public_names`` writes them to ``public_names.txt``."""

import importlib
import types
from pathlib import Path

FILE = Path(__file__).with_suffix(".txt")
#: Modules whose names are public (docs/stability.md).
MODULES = ("dpmcmc", "dpmcmc.data", "dpmcmc.diagnostics", "dpmcmc.estimators", "dpmcmc.inference", "dpmcmc.mechanisms",
           "dpmcmc.privacy", "dpmcmc.samplers", "dpmcmc.targets")  # fmt: skip


def names():
    """Return the public names, sorted: ``__all__`` of each module, or else what it imports by name."""
    return sorted(f"{module}.{name}" for module in MODULES for name in _of(importlib.import_module(module)))


def _of(module):
    return getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not (name.startswith("_") or isinstance(value, types.ModuleType))
    ]


if __name__ == "__main__":
    FILE.write_text("\n".join(names()) + "\n", encoding="utf-8")
