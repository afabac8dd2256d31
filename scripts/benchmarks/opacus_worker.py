"""Opacus's DP-SGD step, timed on request in a process of its own: PyTorch may live in another environment than JAX.

The worker sleeps between requests, so it takes its turn with the other programs. Run as a script it is the worker:
it reads lines ``variant steps``, and answers each with the seconds they took.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any


class WorkerError(RuntimeError):
    """Opacus cannot be timed here."""


class Worker:
    """The other process, as a context.

    Args:
        size: of the problem; its ``torch_python`` runs the worker, or this Python where that is empty.
    """

    def __init__(self, size: Any) -> None:
        self._arguments = [str(size.num_records), str(size.features), str(size.batch)]
        self._python = size.torch_python or sys.executable
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed on exit

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.close()
            self._process.wait(timeout=60)
            self._process.stdout.close()
        self._errors.close()

    def variants(self) -> list[str]:
        """Start the worker and ask what it can time.

        Raises:
            WorkerError: Opacus is not installed there, or fails.
        """
        try:
            self._process = subprocess.Popen(
                [self._python, __file__, *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                # Threads that spin while they wait would slow down whoever's turn it is.
                env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"},
            )
        except OSError as error:
            raise WorkerError(f"{self._python} does not start ({error.strerror})") from error
        return self._answer()

    def time(self, variant: str, steps: int) -> float:
        """Microseconds a step.

        Raises:
            WorkerError: the worker died.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps([variant, steps]) + "\n")
            self._process.stdin.flush()
        return self._answer() / steps * 1e6

    def _answer(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            last = (self._errors.read().strip().splitlines() or ["no message"])[-1]
            if "No module named" in last:
                raise WorkerError(f"not installed in {Path(self._python).parent.parent}")
            raise WorkerError(f"failed ({last})")
        return json.loads(line)


def _serve(num_records: int, features: int, batch: int) -> None:
    warnings.simplefilter("ignore")
    import opacus
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(0)
    x = torch.randn(num_records, features) / features**0.5
    y = torch.bernoulli(torch.sigmoid(x @ torch.randn(features))).unsqueeze(1)
    loss = torch.nn.BCEWithLogitsLoss()

    def trainer(poisson: bool) -> tuple[Any, Any, Any]:
        module = torch.nn.Linear(features, 1, bias=False)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=batch)
        return opacus.PrivacyEngine().make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=16.0, weight_decay=1 / num_records),
            data_loader=loader,
            noise_multiplier=2.0,
            max_grad_norm=1.0,
            poisson_sampling=poisson,
        )

    def step(module: Any, optimizer: Any, inputs: Any, labels: Any) -> None:
        optimizer.zero_grad()
        loss(module(inputs), labels).backward()
        optimizer.step()

    loaded, indexed = trainer(True), trainer(False)

    def from_loader(steps: int) -> None:
        module, optimizer, loader = loaded
        while steps > 0:
            for inputs, labels in loader:
                step(module, optimizer, inputs, labels)
                steps -= 1
                if steps == 0:
                    return

    def from_tensors(steps: int) -> None:
        module, optimizer, _ = indexed
        for _ in range(steps):
            at = torch.randint(num_records, (batch,))
            step(module, optimizer, x[at], y[at])

    variants = {"its Poisson loader": from_loader, "randint": from_tensors}
    print(json.dumps(list(variants)), flush=True)
    for line in sys.stdin:
        variant, steps = json.loads(line)
        started = time.perf_counter()
        variants[variant](steps)
        print(json.dumps(time.perf_counter() - started), flush=True)


if __name__ == "__main__":
    _serve(*map(int, sys.argv[1:]))
