"""Per-record clipping of a Flax network: the digits network of ``configs/digits_bnn.yaml``, private and not."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import dpmcmc
from benchmarks.problem import Size, make_plan, sampled
from benchmarks.report import Table
from benchmarks.timing import Clock, in_turn, ratio


def tables(size: Size) -> list[Table]:
    """One table: ghost norms, one gradient per record, and no privacy, for a minibatch and the full batch."""
    from dpmcmc.targets.shipped_models import EdgeNetwork

    pixels, labels = load_digits(return_X_y=True)
    x = np.hstack([pixels / 16, np.ones((len(pixels), 1))])[:1347]
    data = {
        "x": jnp.asarray(x / np.linalg.norm(x, axis=1, keepdims=True), jnp.float32),
        "y": jnp.asarray(labels[:1347], jnp.int32),
    }
    n, d = data["x"].shape
    network = EdgeNetwork(8 if size.quick else 64)
    table = Table(
        "Per-record clipping of a Flax network",
        f"The digits network ({'8' if size.quick else '64'} hidden units, N {n:,}), SGLD. `auto` takes norms from "
        "activations and back-propagated errors where the layers allow it (ghost norms); `plain` is a gradient of its "
        "own for every record. Ratios are to the step without privacy on the same batch.",
    )
    steps = max(size.steps // 20, 20)
    batches = {"128": dpmcmc.Poisson(128), f"{n:,} (full)": dpmcmc.Full()}
    for name, sampling in list(batches.items())[: 1 if size.quick else None]:
        clocks: dict[str, Clock] = {}
        for how in ("no privacy", "auto", "plain"):
            more = {} if how == "no privacy" else {"per_record": how}
            plan = make_plan(
                n,
                d,
                128,
                steps,
                target=dpmcmc.targets.from_flax(network, prior_scale=3.0, **more),
                sampler=dpmcmc.SGLD(step_size=0.1),
                sampling=sampling,
                thin=steps,
                private=how != "no privacy",
            )
            clocks[how] = sampled(plan, data)
        times = in_turn(clocks, size.repeats)
        for how, values in times.items():
            table.rows.append(
                {
                    "batch": name,
                    "gradients": how if how == "no privacy" else f"private, {how}",
                    "µs a step": float(np.median(values)),
                    "÷ no privacy": ratio(values, times["no privacy"]),
                    "÷ plain": ratio(values, times["plain"]) if how != "no privacy" else None,
                }
            )
    return [table]
