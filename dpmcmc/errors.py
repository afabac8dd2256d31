"""Errors: refusals on purpose, and failures that stop a run.

Every refusal is an InputError, so that a command can tell it from a fault: a ValueError of NumPy, JAX or of our own
code that nobody meant to raise is never printed as the user's.
"""

from __future__ import annotations


class InputError(ValueError):
    """Something given cannot be used; the message says what, where and how to mend it."""


class RunFailed(RuntimeError):
    """A run that was stopped for a reason that is not the user's; the message says it, and what to do."""
