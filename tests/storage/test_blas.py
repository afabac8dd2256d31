"""Linear algebra on the host has one thread, and the caller's number of threads is his again afterwards."""

import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import threadpoolctl

from dpmcmc.storage.blas import one_blas_thread


def threads():
    return {one["num_threads"] for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"}


@pytest.fixture
def three():
    """The caller's own number of threads."""
    with threadpoolctl.threadpool_limits(3, user_api="blas"):
        assert threads() == {3}
        yield
        assert threads() == {3}


@pytest.mark.parametrize("seed", range(20))
def test_threads_that_come_and_go_in_any_order_share_the_limit(three, seed):
    """A thread that ends earlier leaves the limit to the others."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 6))
    moves = [number for number in range(count) for _ in range(2)]
    rng.shuffle(moves)
    go = [threading.Semaphore(0) for _ in range(count)]
    went = threading.Semaphore(0)

    def work(number):
        go[number].acquire()
        with one_blas_thread():
            went.release()
            go[number].acquire()
        went.release()

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
    for worker in workers:
        worker.start()
    inside = set()
    for number in moves:
        go[number].release()
        went.acquire()
        inside ^= {number}
        assert threads() == ({1} if inside else {3})
    for worker in workers:
        worker.join()


PROGRAM = """
    import sys, warnings
    import numpy as np, scipy.linalg, threadpoolctl, pandas as pd
    import dpmcmc
    from dpmcmc.data import Range, Schema

    warnings.simplefilter("ignore")
    seen = []

    def threads():
        return {one["num_threads"] for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"}

    def watched(room, name):
        original = getattr(room, name)

        def call(*given, **more):
            seen.append((name, sys._getframe(1).f_code.co_filename, threads()))
            return original(*given, **more)

        setattr(room, name, call)

    for name in ("eigh", "eigvalsh", "cholesky", "solve", "inv", "svd", "qr"):
        watched(np.linalg, name)
    threadpoolctl.threadpool_limits(3, user_api="blas")
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.uniform(0, 10, 2000), "b": rng.uniform(-1, 1, 2000)})
    table["y"] = table.a + rng.normal(size=2000) > 5
    schema = Schema({"a": Range(0, 10), "b": Range(-1, 1), "y": dpmcmc.data.Levels([False, True])}, label="y")
    result = dpmcmc.fit("y ~ a + b", table, schema, epsilon=8.0)
    assert threads() == {3}
    result.summary(), result.predict(table[:5]), result.effects()
    if result.evidence is not None:
        result.evidence.posterior(), result.evidence.prior_check(), result.evidence.objections
    x = rng.normal(size=(500, 3)) / 4
    target = dpmcmc.targets.LogisticRegression(num_features=3, row_bound=1.0)
    plan = dpmcmc.plan(
        target, num_records=500, sampler=dpmcmc.SGLD(step_size=1.0), sampling=dpmcmc.Full(), steps=64,
        privacy=dpmcmc.Privacy(epsilon=8.0, delta=1e-4), metric=dpmcmc.PrivateMetric(),
    )
    chain = dpmcmc.sample(plan, {"x": x, "y": np.ones(500)})
    chain.verdict, chain.draws
    dpmcmc.diagnostics.per_instance.leave_one_out(x, x @ np.ones(3), 1.0)
    assert threads() == {3}
    own = [one for one in seen if "/dpmcmc/" in one[1]]
    assert len(own) > 20, own
    assert all(one[2] == {1} for one in own), [one for one in own if one[2] != {1}]
"""


def test_whatever_a_caller_asks_for_has_one_thread():
    """Every factorisation that the package asks NumPy for, in fits, chains, their conclusions and diagnostics."""
    free = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    subprocess.run([sys.executable, "-c", textwrap.dedent(PROGRAM)], env=free, check=True)


def test_a_command_has_one_thread_from_its_start(tmp_path):
    """Before NumPy is imported, so that no second thread begins."""
    free = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    code = """
        import sys
        from dpmcmc import __main__ as command
        from dpmcmc.cli import commands
        def main():
            import numpy, threadpoolctl
            print({one["num_threads"] for one in threadpoolctl.threadpool_info()})
        commands.main = main
        sys.argv[1:] = ["configs"]
        command.main()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=free, capture_output=True, text=True)
    assert done.stdout.strip() == "{1}", done.stderr
