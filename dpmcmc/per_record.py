"""``python -m dpmcmc.per_record CONFIG --every K --out DIR``: a run, and what it cost each training record.

The run is one of its own: it is charged to the config's ledger, and its draws and guarantee may be published. What it
cost each record may not: that is in ``confidential/``, which only its owner can read.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path

import jax
from rich.console import Console

from dpmcmc import config as config_room
from dpmcmc import config_file
from dpmcmc import data as data_room
from dpmcmc.cache import keep_compiled_programs
from dpmcmc.command import CommandError, Parser, add_allow_code, command
from dpmcmc.diagnostics import per_record
from dpmcmc.engine import DivergedError
from dpmcmc.out_folder import swept
from dpmcmc.planning import Plan
from dpmcmc.result import Result


def parser() -> argparse.ArgumentParser:
    """Command-line arguments."""
    out = Parser(
        prog="python -m dpmcmc.per_record",
        description="Run a configuration and account for every training record along the way the run took.",
    )
    out.add_argument("config", help="YAML file, for example configs/adult.yaml")
    out.add_argument("--set", action="append", default=[], metavar="a.b=VALUE", help="override one key")
    add_allow_code(out)
    out.add_argument("--every", type=int, default=1, metavar="K", help="compute all norms every K steps (default 1)")
    out.add_argument("--out", required=True, metavar="DIR", help="run folder, new or empty")
    return out


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point; see :func:`parser`."""
    arguments = parser().parse_args(argv)
    with swept(Path(arguments.out)):
        _carry_out(arguments)


def _carry_out(arguments: argparse.Namespace) -> None:
    console = Console(highlight=False, soft_wrap=True, markup=False)
    keep_compiled_programs()
    folder = Path(arguments.out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CommandError(f"--out: {folder} already holds something; give a folder that is new or empty.")
    config = config_file.load(arguments.config, arguments.set, allow_code=arguments.allow_code)
    if config.privacy is None or not config_room.is_secret(config):
        raise CommandError(f"{arguments.config}: its run has no guarantee, so there is nothing that a record spends.")
    plan = config_room.make_plan(config)
    if not isinstance(plan, Plan) or plan.after is not None:
        raise CommandError(f"{arguments.config}: its release is a mechanism's; this accounts for a sampler's own run.")
    if not 1 <= arguments.every <= plan.steps:
        raise CommandError(f"--every: must lie in 1..{plan.steps}, the run's steps, got {arguments.every}.")
    data = data_room.load(config.data)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        result, account = per_record.sample_and_account(
            plan, data.train, every=arguments.every, ledger=config.privacy.ledger
        )
    except DivergedError as error:
        raise CommandError(f"sampler.step_size: {error}", code=1) from None
    _kept(result, plan).save(folder)
    confidential = folder / "confidential"
    confidential.mkdir(mode=0o700, exist_ok=True)
    os.chmod(confidential, 0o700)
    account.save(confidential / "per_record.npz")
    assert plan.guarantee is not None
    title = f"{config.name}: what the run cost each record" + (
        "" if arguments.every == 1 else f", at most (norms every {arguments.every} steps)"
    )
    per_record.draw(confidential / "per_record.png", account, plan.guarantee.epsilon, title)
    console.print(f"spent        {result.guarantee}")
    console.print(f"saved        {folder}")
    console.print(f"never publish or archive {confidential}", style="red")


def _kept(result: Result, plan: Plan) -> Result:
    """The draws that the plan keeps, out of all."""
    first = plan.burn_in + plan.thin - 1

    def thinned(leaf: jax.Array) -> jax.Array:
        return leaf[:, first :: plan.thin]

    draws, positions, info = (jax.tree.map(thinned, t) for t in (result.draws, result.positions, result.info))
    return dataclasses.replace(result, plan=plan, draws=draws, positions=positions, info=info)


if __name__ == "__main__":
    sys.exit(main())
