"""One process, many runs: memory is bounded, and threads do not disturb each other."""

import contextlib
import threading

import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.engine import compilation
from dpmcmc.privacy.query.randomness import SecretKey
from dpmcmc.targets import Custom

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
