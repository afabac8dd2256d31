"""``python -m dpmcmc.verify privacy.json``: recompute ε from the saved events.

Exit code 0 where the stated ε is at least the recomputed one, 1 where it is smaller.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

from dpmcmc.command import CommandError, command
from dpmcmc.privacy import Guarantee

#: Accountants of different versions may differ in the last digits.
_TOLERANCE = 1e-6
#: What a posterior draw is charged as.
_DRAWS = ("posterior_draw", "pure", "noisy_descent")
#: What a step of a sampler is charged as.
_QUERIES = ("gaussian", "poisson_gaussian", "fixed_size_gaussian")


def parser() -> argparse.ArgumentParser:
    """Command-line arguments."""
    out = argparse.ArgumentParser(prog="python -m dpmcmc.verify", description="Recompute a guarantee.")
    out.add_argument("privacy", help="privacy.json of a run folder")
    return out


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point; see :func:`parser`."""
    path = Path(parser().parse_args(argv).privacy)
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path}: cannot be read ({error}); give a run folder's privacy.json.") from None
    except json.JSONDecodeError as error:
        raise CommandError(f"{path}: not JSON (line {error.lineno}); give a run folder's privacy.json.") from None
    if not isinstance(body, dict) or not body.get("events"):
        raise CommandError(f"{path}: holds no events, so it states no guarantee to verify.")
    try:
        recomputed = Guarantee.from_json(body)
        stated = math.inf if body["epsilon"] is None else float(body["epsilon"])
        noisy = [e for e in recomputed.events if e.mechanism in _QUERIES]
        queries = sum(e.count for e in noisy)
        # Noise multipliers of a step's minibatches relative to the gradient's; one entry each.
        multiples = [float(m) for m in body.get("multiples", [1.0])]
        promised = int(body.get("steps", queries)) * int(body.get("chains", 1)) * len(multiples)
        added = float((body.get("noise_multiplier") or {}).get("min", math.inf)) * min(multiples)
        charged = min((e.noise_multiplier for e in noisy), default=0.0)
        rate = min((e.rate for e in noisy), default=1.0)
        sampled = float((body.get("sampling") or {}).get("rate", 0.0))
        draws = sum(e.count for e in recomputed.events if e.mechanism in _DRAWS)
        kept = int(body.get("charged_draws", draws))
    except (KeyError, TypeError, ValueError) as error:
        raise CommandError(
            f"{path}: is not a privacy.json of this library; {type(error).__name__} at {error}."
        ) from None
    print(f"stated       epsilon {stated:.6g} at delta {recomputed.delta:g}")
    print(f"recomputed   {recomputed}")
    for name, value in recomputed.cross_check().items():
        print(f"{name:<12} {'no derivation for this combination' if value is None else f'epsilon {value:.6g}'}")
    if not recomputed.epsilon <= stated * (1 + _TOLERANCE):
        raise CommandError(
            f"{path}: states epsilon {stated:.6g}, and its events cost {recomputed.epsilon:.6g}; do not rely on it.",
            code=1,
        )
    if queries < promised:
        raise CommandError(
            f"{path}: charges {queries} queries where steps x chains x minibatches is {promised}; do not rely on it.",
            code=1,
        )
    if rate < sampled * (1 - 1e-9):
        raise CommandError(
            f"{path}: charges for rate {rate:.6g} where the run sampled at {sampled:.6g}; do not rely on it.", code=1
        )
    if draws < kept:
        raise CommandError(f"{path}: charges for {draws} of {kept} posterior draws; do not rely on it.", code=1)
    settled = float((body.get("settings") or {}).get("noise_multiplier", math.inf))
    loudest = max((e.noise_multiplier for e in recomputed.events if e.mechanism in _DRAWS), default=0.0)
    if loudest > settled * (1 + _TOLERANCE):
        raise CommandError(
            f"{path}: charges for noise multiplier {loudest:.6g} where the plan settled {settled:.6g}; do not rely on "
            "it.",
            code=1,
        )
    if charged > added:
        raise CommandError(
            f"{path}: charges for noise multiplier {charged:.6g} where the run added {added:.6g}; do not rely on it.",
            code=1,
        )
    print("verified: the stated epsilon covers the events")


if __name__ == "__main__":
    sys.exit(main())
