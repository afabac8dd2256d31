"""``python -m dpmcmc.run CONFIG``: plan, run, and write a folder that can be published.

Released: everything in the run folder except ``confidential/``, which only its owner can read and which may
live elsewhere (``--confidential DIR``).
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dpmcmc import config as config_room
from dpmcmc import data as data_room
from dpmcmc.cache import cache_folder
from dpmcmc.command import CommandError, command
from dpmcmc.config import Config
from dpmcmc.data import DataSet
from dpmcmc.diagnostics import convergence, predictive, reference
from dpmcmc.engine import DivergedError, sample
from dpmcmc.planning import Plan
from dpmcmc.result import Result, privacy_json, write_draws, write_json
from dpmcmc.targets import bind


def parser() -> argparse.ArgumentParser:
    """Command-line arguments."""
    out = argparse.ArgumentParser(prog="python -m dpmcmc.run", description="Run a configuration.")
    out.add_argument("config", help="YAML file, for example configs/adult.yaml")
    out.add_argument("--set", action="append", default=[], metavar="a.b=VALUE", help="override one key")
    out.add_argument("--out", metavar="DIR", help="run folder (default: runs/NAME-TIME)")
    out.add_argument("--confidential", metavar="DIR", help="where to keep what must not be published")
    out.add_argument("--quiet", action="store_true", help="print only where the run was saved")
    return out


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point; see :func:`parser`."""
    arguments = parser().parse_args(argv)
    console = Console(quiet=arguments.quiet, highlight=False, soft_wrap=True)
    # Compiled programs hold shapes and public constants, no record: safe to keep between runs.
    jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    config = config_room.load(arguments.config, arguments.set)
    folder = _free_folder(arguments.out, config.name)
    started = time.perf_counter()
    plan = config_room.make_plan(config)
    calibrate_seconds = time.perf_counter() - started
    data = data_room.load(config.data)
    run = Run(config, plan, data, folder, Path(arguments.confidential or folder / "confidential"))
    run.print_plan(console)
    run.open()
    seed = config.privacy.insecure_noise_seed if config.privacy else None
    try:
        result = run.sample(console, seed)
    except DivergedError as error:
        write_json(folder / "privacy.json", privacy_json(plan, plan.guarantee if seed is None else None))
        raise CommandError(f"sampler.step_size: {error}", code=1) from None
    run.save(result, calibrate_seconds, console)
    if arguments.quiet:
        print(folder)


@dataclass
class Run:
    """One run of one config: its plan, its data and its folders."""

    config: Config
    plan: Plan
    data: DataSet
    folder: Path
    confidential: Path

    @property
    def note(self) -> str | None:
        """What must stand on every figure, or None."""
        if self.data.origin == "stand-in":
            return f"generated stand-in for {self.data.spec.name}: not the real data"
        if self.config.privacy is not None and self.config.privacy.insecure_noise_seed is not None:
            return "insecure noise seed: no privacy guarantee"
        return None

    def print_plan(self, console: Console) -> None:
        """Say what will be done."""
        x = self.data.train["x"]
        test = "none" if self.data.test is None else f"{len(self.data.test['y']):,} test"
        console.print(f"[bold]{self.config.name}[/bold]")
        console.print(
            f"data         {self.data.spec.name}: {len(x):,} training and {test} records, {x.shape[1]} features, "
            f"from {self.data.origin}"
        )
        if self.data.origin == "stand-in":
            console.print(f"[bold red]             {self.note}[/bold red]")
        for name, text in self.plan.lines():
            console.print(f"{name:<12} {text}", markup=False)

    def open(self) -> None:
        """Create the run folder with its config and plan, before anything is released."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "config.yaml").write_text(config_room.dump(self.config), encoding="utf-8")
            write_json(self.folder / "plan.json", self.plan.to_json())
            (self.folder / "figures").mkdir(exist_ok=True)
            self.confidential.mkdir(parents=True, exist_ok=True)
            os.chmod(self.confidential, 0o700)
        except OSError as error:
            raise CommandError(f"--out: {self.folder} cannot be written ({error.strerror}).") from None

    def sample(self, console: Console, seed: int | None) -> Result:
        """Run the plan with a progress bar kept outside the compiled code."""
        columns = (
            TextColumn("sampling    "),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeRemainingColumn(),
        )
        # A log file or a pipe wants no bar, nor the blank line it would leave.
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("", total=self.plan.steps)
            return sample(
                self.plan,
                self.data.train,
                key=seed,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )

    def save(self, result: Result, calibrate_seconds: float, console: Console) -> None:
        """Write draws, guarantee, metrics and figures, and print them."""
        from dpmcmc import plots

        folder = self.folder
        write_draws(folder / "draws.nc", result.draws, result.info)
        facts = {
            "name": self.data.spec.name,
            "origin": self.data.origin,
            "public": self.data.spec.public,
            "encoding": self.data.spec.encoding,
            "sha256": self.data.sha256 or None,
        }
        write_json(folder / "privacy.json", privacy_json(self.plan, result.guarantee, facts))
        released, confidential, curves = self._metrics(result)
        released["wall_seconds"] = {**result.wall_seconds, "calibrate": calibrate_seconds}
        released["steps_per_second"] = result.steps_per_second
        write_json(folder / "metrics.json", _finite(released))
        write_json(self.confidential / "diagnostics.json", _finite(confidential))
        os.chmod(self.confidential / "diagnostics.json", 0o600)
        title = f"{self.config.name}: " + (
            f"ε = {result.guarantee.epsilon:.3g}, δ = {result.guarantee.delta:.3g}"
            if result.guarantee
            else "no guarantee"
        )
        figures = folder / "figures"
        plots.traces(figures / "traces.png", result.draws, self.plan.burn_in, self.plan.thin, title, self.note)
        if curves and self.data.test is not None:
            where = figures if self.data.test_is_public else self.confidential
            plots.calibration(where / "calibration.png", curves, self.data.test["y"], title, self.note)
        if result.guarantee is not None and np.isfinite(result.guarantee.epsilon):
            plots.epsilon_delta(figures / "epsilon_delta.png", result.guarantee, title, self.note)
        self._print_result(result, released, confidential, console)

    def _metrics(self, result: Result) -> tuple[dict[str, Any], dict[str, Any], dict[str, np.ndarray]]:
        """(released, confidential, predicted probabilities by model)."""
        target = bind(self.plan.target, jax.tree.map(lambda leaf: leaf[0], self.data.train))
        temperatures = self.plan.temperatures
        released: dict[str, Any] = {
            "accuracy": None,
            "log_predictive_density": None,
            "non_private": None,
            **convergence.summary(result.draws),
            "temperature": {"min": float(temperatures.min()), "max": float(temperatures.max())},
            "draws": self.plan.num_draws * self.plan.chains,
            "data": {"name": self.data.spec.name, "origin": self.data.origin},
        }
        confidential: dict[str, Any] = {
            "about": "Computed from training records without privacy. Never publish or archive this folder."
        }
        curves: dict[str, np.ndarray] = {}
        flat = result.flat_draws()
        if getattr(target, "num_classes", None) != 2:
            return released, confidential, curves
        train = predictive.binary(target, flat, self.data.train)
        confidential["train"] = train.to_json()
        fit = reference.laplace(target, self.data.train)
        fitted: dict[str, Any] = {"method": "Laplace at the MAP", "distance": reference.distance(fit, flat)}
        if self.data.test is not None:
            private = predictive.binary(target, flat, self.data.test)
            curves["private draws"] = private.probability
            plain = predictive.binary(target, fit.draws(200), self.data.test)
            curves["non-private (Laplace)"] = plain.probability
            fitted |= plain.to_json()
            (released if self.data.test_is_public else confidential).update(private.to_json())
        # A non-private fit may leave only where the records themselves may.
        (released if self.data.spec.public else confidential)["non_private"] = fitted
        return released, confidential, curves

    def _print_result(self, result: Result, released: dict, confidential: dict, console: Console) -> None:
        both = {**confidential, **{k: v for k, v in released.items() if v is not None}}
        accuracy, plain = both.get("accuracy"), both.get("non_private")
        if accuracy:
            against = f"; non-private fit {plain['accuracy']['posterior_predictive']:.4f}" if plain else ""
            console.print(
                f"accuracy     {accuracy['posterior_predictive']:.4f} posterior predictive, {accuracy['mean']:.4f} ± "
                f"{accuracy['std']:.4f} single draw{against}"
            )
        if plain:
            d = plain["distance"]
            console.print(
                f"posterior    marginal W₁ to the non-private posterior {d['wasserstein_mean']:.2f} (mean) of its std; "
                f"draws {d['std_ratio']:.2f} times as wide"
            )
        if released["ess"] is not None:
            console.print(f"mixing       ESS {released['ess']:.0f}, split R-hat {released['rhat']:.3f}")
        wall = released["wall_seconds"]
        console.print(
            f"time         calibrate {wall['calibrate']:.1f} s, compile {wall['compile']:.1f} s, "
            f"run {wall['run']:.1f} s ({released['steps_per_second']:,.0f} steps/s)"
        )
        spent = str(result.guarantee) if result.guarantee else "no guarantee (see privacy.json)"
        console.print(f"[bold]spent        {spent}[/bold]")
        console.print(f"saved        {self.folder}")
        console.print(f"[red]never publish or archive {self.confidential}[/red]")


def _free_folder(out: str | None, name: str) -> Path:
    """The run folder; refuses one that holds something, or that cannot be made."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = Path(out) if out else Path("runs") / f"{name}-{stamp}"
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise CommandError(f"--out: {folder} already holds something; give a folder that is new or empty.")
    except OSError as error:
        raise CommandError(f"--out: {folder} cannot be read ({error.strerror}).") from None
    parent = folder
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise CommandError(f"--out: {folder} cannot be created, because {parent} is not a folder you can write to.")
    return folder


def _finite(body: Any) -> Any:
    """JSON has no NaN: what could not be computed is null."""
    if isinstance(body, dict):
        return {k: _finite(v) for k, v in body.items()}
    if isinstance(body, float) and not np.isfinite(body):
        return None
    return body


if __name__ == "__main__":
    sys.exit(main())
