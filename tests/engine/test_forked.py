"""A process that is forked from one in which JAX has worked: what would hang is refused, and all else works."""

import os
import signal
import subprocess
import sys
import time
import warnings

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import dpmcmc
from dpmcmc import testing
from dpmcmc.data import Levels, Range, Schema
from dpmcmc.diagnostics import per_record, reference
from dpmcmc.estimators import PrivateLogisticRegression
from dpmcmc.inference import predictive
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.privacy.query.randomness import SecretKey
from dpmcmc.targets import LogisticRegression, bind, record_shapes
from tests.own_models import counts, network

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")

#: Seconds after which a child hangs.
PATIENCE = 30
N = 400


def said_in_a_child(act):
    """Return what a forked child says of an act: ``done``, ``refused``, another error, or nothing where it hangs."""
    said, say = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX's and Python's own, of forking
        child = os.fork()
    if child == 0:
        try:
            try:
                act()
                answer = "done"
            except Exception as error:
                forked = "this process was forked" in str(error) or "a forked process" in str(error)
                answer = "refused" if forked else repr(error)
            os.write(say, answer.encode())
        finally:
            os._exit(0)
    os.close(say)
    until = time.monotonic() + PATIENCE
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.02)
    with os.fdopen(said) as file:
        return file.read()


@pytest.fixture(scope="module")
def acts():
    """What is asked of a forked process, by the answer."""
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.uniform(-0.5, 0.5, N), np.full(N, 0.5)]).astype(np.float32)
    records = {"x": x, "y": (x[:, 0] > 0).astype(np.int32)}
    labels = (x[:, 0] + rng.normal(size=N) > 0).astype(np.int32)
    frame, target = pd.DataFrame({"a": x[:, 0], "y": labels}), LogisticRegression(num_features=2, row_bound=1.0)
    schema, bound = Schema({"a": Range(-1, 1), "y": Levels([0, 1])}, label="y"), bind(target, record_shapes(records))
    private = {"num_records": N, "steps": 4, "privacy": dpmcmc.Privacy(epsilon=2.0, delta=1e-4)}
    model = bind(counts(), record_shapes(records))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = dpmcmc.fit(None, frame, schema, 20.0, goal="prediction")
        release = dpmcmc.sample(
            NoiseAware().plan(target, num_records=N, epsilon=20.0, delta=1e-4, schema=None), records
        )
        plan = dpmcmc.plan(target, sampler=dpmcmc.SGLD(step_size=0.1), **private)
        chain = dpmcmc.sample(plan, records)
        of_counts = dpmcmc.sample(dpmcmc.plan(model, sampler=dpmcmc.SGLD(step_size=0.01), **private), records)
        estimator = PrivateLogisticRegression(20.0, ranges=(-1, 1)).fit(x, records["y"])
    key = SecretKey()
    refused = {
        "sample": lambda: dpmcmc.sample(plan, records),
        "fit": lambda: dpmcmc.fit(None, frame, schema, 20.0, goal="prediction"),
        "fit of an estimator": lambda: PrivateLogisticRegression(20.0, ranges=(-1, 1)).fit(x, records["y"]),
        "predict of a table": lambda: table.predict(frame),
        "predict": lambda: chain.predict(x),
        "predict of a NumPyro model": lambda: of_counts.predict(x=x),
        "scores": lambda: predictive.predict(target, chain.flat_draws(), records),
        "laplace": lambda: reference.fit(bound, records),
        "cost of each record": lambda: per_record.Account(plan, records),
        "bind of a network": lambda: bind(network(), record_shapes(records)),
        "plan of a NumPyro model": lambda: NoiseAware().plan(model, num_records=N, epsilon=1.0, delta=1e-4),
        "check_target": lambda: testing.check_target(target, records),
        "check_sampler": lambda: testing.check_sampler(dpmcmc.SGLD(step_size=0.1)),
        "a key of the parent's": key.streams,
    }
    done = {
        "predict of an estimator": lambda: estimator.predict_proba(x),
        "summary": lambda: [str(result.summary()) for result in (table, release, chain, of_counts)],
        "to_arviz": lambda: [result.to_arviz() for result in (table, release, chain, of_counts)],
        "noise_aware": lambda: release.noise_aware(),
        "diagnostics": lambda: (chain.diagnostics, chain.verdict, of_counts.diagnostics),
        "page": lambda: [result.page() for result in (table, release, chain)],
        "evidence": lambda: (release.evidence.posterior(), release.evidence.prior_check()),
        "a plan": lambda: dpmcmc.plan(target, sampler=dpmcmc.SGLD(step_size=0.1), **private),
        "a suggestion": lambda: dpmcmc.suggest(target, num_records=N, epsilon=20.0, goal="prediction"),
    }
    return {"refused": refused, "done": done}


@pytest.mark.parametrize("answer", ["refused", "done"])
def test_what_would_hang_in_a_forked_process_is_refused_and_the_rest_works(acts, answer):
    said = {name: said_in_a_child(act) for name, act in acts[answer].items()}
    assert said == dict.fromkeys(said, answer)


def test_a_process_that_was_forked_before_jax_began_is_not_refused():
    """In a Python of its own, whose JAX has done nothing yet; the child computes, and the parent's JAX does not."""
    code = (
        "import os, warnings; warnings.simplefilter('ignore'); import numpy as np, dpmcmc\n"
        "from dpmcmc.targets import LogisticRegression\n"
        "from dpmcmc.inference import predictive\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    found = predictive.mean(LogisticRegression(num_features=2), np.zeros((3, 2)), np.zeros((5, 2)))\n"
        "    os._exit(0 if found.shape == (5,) else 1)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0


def test_a_key_of_the_parents_is_still_its_own():
    jnp.zeros(1)  # JAX has begun
    key = SecretKey()
    assert said_in_a_child(key.streams) == "refused"
    key.streams()
