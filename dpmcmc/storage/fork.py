"""Refusal of a process that was forked from one in which JAX had begun: JAX's threads are not there, and it may hang.

Whatever runs a program of JAX asks :func:`check_not_forked` first. All else, such as a result's summary, works there.
"""

from __future__ import annotations

import os

from dpmcmc.errors import InputError

try:  # JAX has no public name for it
    from jax._src.xla_bridge import backends_are_initialized as _jax_has_begun
except ImportError:

    def _jax_has_begun() -> bool:
        """Return True, since nobody says otherwise: every forked process is then refused."""
        return True


#: Whether JAX had begun in the process that is about to fork; whether it had in one that this process was forked from.
_begun = _forked = False


def _before() -> None:
    global _begun
    _begun = _jax_has_begun()


def _in_child() -> None:
    global _forked
    _forked = _forked or _begun


if os.name == "posix":  # no other system forks
    os.register_at_fork(before=_before, after_in_child=_in_child)


def check_not_forked() -> None:
    """Refuse to compute in a process that was forked from one in which JAX had begun.

    Raises:
        InputError: this is one.
    """
    if _forked:
        raise InputError(
            "this process was forked from one that has used JAX, which does not survive a fork; start workers by "
            'multiprocessing.get_context("spawn") or joblib\'s backend "loky", or fork before JAX is first used'
        )
