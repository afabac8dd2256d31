"""One process, many runs: memory is bounded, and threads do not disturb each other."""

import contextlib
import functools
import gc
import subprocess
import sys
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.engine import compilation
from dpmcmc.privacy.query.randomness import SecretKey
from dpmcmc.targets import Custom

ROOT = Path(__file__).resolve().parents[1]
#: Bits or sensitivities of what users run.
pytestmark = pytest.mark.optimised

TARGET = Custom(lambda key: jnp.zeros(2), lambda p: -0.5 * jnp.sum(p**2), lambda p, r: -jnp.sum(r["g"]) * jnp.sum(p))


def make(**changes):
    privacy = dpmcmc.Privacy(epsilon=2.0, delta=1e-3, accountant="rdp", adjacency="zero_out")
    settings = {"num_records": 6, "sampler": dpmcmc.SGLD(step_size=1.0), "steps": 3} | changes
    return dpmcmc.plan(TARGET, privacy=privacy, **settings)


def records(columns):
    return {"g": np.linspace(-1, 1, 6 * columns, dtype=np.float32).reshape(6, columns)}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts the memory maps of Linux")
def test_programs_of_many_shapes_are_let_go():
    """Of 65530 memory maps that a process may have, a program takes some 150; those of other tests are not counted."""
    alone = "import pytest; from tests import test_memory; test_memory.let_go(pytest.MonkeyPatch())"
    done = subprocess.run([sys.executable, "-c", alone], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def let_go(monkeypatch):
    few = functools.lru_cache(maxsize=2)(compilation._compile_cached.__wrapped__)
    monkeypatch.setattr(compilation, "_compile_cached", few)
    maps = []
    for columns in range(3, 9):
        dpmcmc.sample(make(), records(columns))
        gc.collect()  # a program that has been let go may be in a circle
        maps.append(len(Path("/proc/self/maps").read_text().splitlines()))
    assert few.cache_info().currsize == 2
    assert few.cache_info().misses == 6
    # From the second on no more programs are kept; each of these shapes would add 34 where one array stayed compiled.
    assert maps[-1] - maps[1] < 60, maps


def test_the_programs_kept_are_far_from_the_limit():
    assert compilation._compile_cached.cache_info().maxsize == compilation.KEPT_PROGRAMS
    assert compilation.KEPT_PROGRAMS * 181 < 65530 / 5


@pytest.mark.slow
def test_threads_get_what_they_get_alone():
    plans = [make(steps=5), make(steps=5, sampler=dpmcmc.SGHMC(step_size=0.1))]
    compilation._compile_cached.cache_clear()  # compiled, and tested, beside each other
    found, begin = {}, threading.Barrier(4)

    def work(at):
        begin.wait()
        found[at] = dpmcmc.sample(plans[at % 2], records(3), key=at).draws
        assert dpmcmc.sample(plans[at % 2], records(3)).guarantee is not None

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [0, 1, 2, 3]
    for at, draws in found.items():
        np.testing.assert_array_equal(draws, dpmcmc.sample(plans[at % 2], records(3), key=at).draws)


def test_a_key_is_given_to_one_of_many_threads():
    for _ in range(20):
        key, begin, taken = SecretKey(), threading.Barrier(8), []

        def take(key=key, begin=begin, taken=taken):
            begin.wait()
            with contextlib.suppress(ValueError):
                taken.append(key.streams())

        threads = [threading.Thread(target=take) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(taken) == 1
