"""Entropy that tests know: the same in every run of a test, so that none fails by chance.

A run without a seed takes its keys from ``secrets``. In the process of the tests the functions of ``secrets`` that the
package calls follow from the test's name alone, and no two calls within a test give the same. A process that a test
starts or forks has the operating system's entropy.
"""

import os
import random
import secrets

_PROCESS = os.getpid()
_source = random.Random()
_bytes, _below = secrets.token_bytes, secrets.randbelow


def follow(name: str) -> None:
    """Begin the entropy of the test of this name; tests of another process are given the system's."""
    _source.seed(name)
    secrets.token_bytes, secrets.randbelow = _known_bytes, _known_below


def _known_bytes(nbytes: int | None = None) -> bytes:
    if os.getpid() != _PROCESS:
        return _bytes(nbytes)
    return _source.randbytes(32 if nbytes is None else nbytes)


def _known_below(exclusive_upper_bound: int) -> int:
    if os.getpid() != _PROCESS:
        return _below(exclusive_upper_bound)
    return _source.randrange(exclusive_upper_bound)
