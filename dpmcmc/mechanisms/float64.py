"""A block of code in which JAX computes in float64, whatever the process is set to."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from typing import Any

import jax


def float64() -> AbstractContextManager[Any]:
    """Return the context for ``with float64(): ...``. JAX moved this switch, so both places are tried."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    return importlib.import_module("jax.experimental").enable_x64()
