"""Runs array functions with the shapes of their signatures checked; ``test_proofs.py`` starts it in its own process.

The package imports jaxtyping for type checkers alone. Here its names are builtins and its import hook is installed
before the package is imported, so every call of a hooked module is checked.
"""

import builtins
import sys
from collections.abc import Callable

import jaxtyping
from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeDecorHintException

HOOKED = ("dpmcmc.samplers", "dpmcmc.targets", "dpmcmc.inference", "dpmcmc.privacy.query")
#: An int passes for a float, as in Python's own rules.
_strict = beartype(conf=BeartypeConf(is_pep484_tower=True))


def checker(function: Callable) -> Callable:
    """The function with its annotations checked; as it is where beartype cannot read one, such as Self.

    A constructor is left as it is: JAX rebuilds targets and samplers with tracers in the place of their numbers.
    """
    if function.__name__ in ("__init__", "check_single_arg"):
        return function
    try:
        return _strict(function)
    except BeartypeDecorHintException:
        return function


def main() -> None:
    """Call functions of every hooked room, then one of them with a wrong shape where the command line says so."""
    for name in ("Bool", "Float", "Num", "Shaped"):
        setattr(builtins, name, getattr(jaxtyping, name))
    with jaxtyping.install_import_hook(HOOKED, "__main__.checker"):
        import jax
        import jax.numpy as jnp
        import numpy as np

        import dpmcmc
        from dpmcmc.inference import predictive
        from dpmcmc.privacy.query import exact_sums
        from dpmcmc.targets import LinearRegression, LogisticRegression, SoftmaxRegression

    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    mask = jnp.ones(40, bool)
    if "wrong" in sys.argv:
        exact_sums.linear_sum(jnp.ones(39), jnp.asarray(x), mask, 1.0, 21)
        return
    labels = {LogisticRegression(): 2, LinearRegression(): 2, SoftmaxRegression(num_classes=3): 3}
    for target, classes in labels.items():
        records = {"x": x, "y": rng.integers(0, classes, 40)}
        sampler = dpmcmc.SGLD(step_size=1.0)
        if isinstance(target, SoftmaxRegression):
            sampler = dpmcmc.SGFS(step_size=1.0, fisher="query", metric=2.0)
        privacy = dpmcmc.Privacy(epsilon=4.0, delta=1e-4, accountant="rdp", clip=1.0)
        plan = dpmcmc.plan(
            target, num_records=40, sampler=sampler, sampling=dpmcmc.Poisson(8), steps=4, burn_in=0, privacy=privacy
        )
        draws = dpmcmc.sample(plan, records, key=0).draws
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), draws)
        found = predictive.predict(target, flat, records)
        if found.probability is not None:
            predictive.calibration_curve(*predictive.reliability(found.probability, records["y"]))


if __name__ == "__main__":
    main()
