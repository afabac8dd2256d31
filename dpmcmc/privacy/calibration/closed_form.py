r"""The thesis's noise formula (``calibrator: closed_form``), corrected.

Theorem 3.16 (Wang, "Privacy for free") adds gradient noise of variance V = (c·k·L²/ε²) log(2.5k/δ) log(2/δ) for
k = NT/τ steps, with c = 128 and the condition T >= ε²N/(32τ log(2/δ)). Its noise is sized for a sensitivity of
√2·L(N/τ) where replacing a record moves the gradient by 2L(N/τ), so its own chain of inequalities ends at √2·ε.
Along the same chain with the right sensitivity:

    per step   ε₀ = 2L(N/τ)√(2 log(2.5k/δ)) / √V = ε √(N/(2cτT·log(2/δ)))·4     (classical Gaussian, δ₀ = δ/(2k))
    sampled    ε₁ = 2(τ/N)ε₀, for ε₀ <= 1
    composed   ε₁√(2k log(2/δ)) + k ε₁(e^{ε₁} − 1) <= ε/2 + ε/2

holds at c = 256. We keep the stricter condition of the corrected statement, k >= ε²N²/(16τ² log(2/δ)), and
also check the last line. In our units

    z = √V·τ/(N·L) = (τ/N)(16/ε)√(k log(2.5k/δ) log(2/δ)).

Fixed size (or all records) under replace_one: the proof's subsampling lemma is for that pair alone.

Claim: The thesis's noise formula meets its ε at c = 256.
Proof: the chain of inequalities above, with the right sensitivity.
Held by: test_each_line_of_the_closed_form_proof_holds, test_closed_form_accounted_by_its_own_route_meets_its_target
"""

from __future__ import annotations

import math

from dpmcmc.errors import CalibrationError
from dpmcmc.privacy.accounting.charging import Schedule
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.accounting.promise import Privacy
from dpmcmc.privacy.accounting.sampling import Poisson

#: Corrected constant; the printed one is 128.
CONSTANT = 256.0


def formula(*, epsilon: float, delta: float, steps: int, rate: float, constant: float = CONSTANT) -> float:
    """The formula alone, without its conditions; for tables that set it beside other calibrations.

    Args:
        epsilon: ε.
        delta: δ.
        steps: k, all chains together.
        rate: τ/N.
        constant: 256; 128 gives the thesis's printed noise, which carries no guarantee.
    """
    return rate * math.sqrt(constant * steps * math.log(2.5 * steps / delta) * math.log(2 / delta)) / epsilon


def condition(*, epsilon: float, delta: float, steps: int, rate: float) -> str | None:
    """None where Theorem 3.16 (corrected) applies, else the condition that fails, in words."""
    least = epsilon**2 / (16 * rate**2 * math.log(2 / delta))
    if steps < least:
        return (
            f"Theorem 3.16 needs steps >= ε²N²/(16 b² log(2/δ)) = {math.ceil(least)}, and the plan has {steps}: "
            "take more steps, a larger batch or a smaller ε"
        )
    per_step = epsilon / math.sqrt(8 * steps * math.log(2 / delta))
    if steps * per_step * math.expm1(per_step) > epsilon / 2:
        return (
            f"ε = {epsilon:g} is beyond the range where advanced composition's second term stays below ε/2 "
            "(about 4 log(2/δ)): use a smaller ε"
        )
    return None


def noise_multiplier(schedule: Schedule, privacy: Privacy) -> float:
    """z of the corrected Theorem 3.16, times 1 + KAPPA for float32 clipping.

    The formula knows queries alone. The deviation of integer noise is found when a plan's own noise is charged.

    Raises:
        CalibrationError: Poisson sampling, another adjacency or release, or a condition that fails.
    """
    assert privacy.epsilon is not None
    if privacy.adjacency != "replace_one" or schedule.earlier:
        raise CalibrationError(
            "calibrator closed_form is derived for adjacency replace_one and release trace alone; use calibrator "
            "numeric."
        )
    rate = schedule.sampling.rate(schedule.num_records)
    if isinstance(schedule.sampling, Poisson) and rate < 1:
        raise CalibrationError(
            "calibrator closed_form is proved for scheme fixed_size (or full): its subsampling lemma pairs sampling "
            "without replacement with replace_one. Use scheme fixed_size, or calibrator numeric."
        )
    # Every minibatch of a step is one of the formula's steps, with at least its noise.
    epsilon = privacy.epsilon
    delta = privacy.delta
    steps = schedule.minibatches
    failed = condition(epsilon=epsilon, delta=delta, steps=steps, rate=rate)
    if failed:
        raise CalibrationError(f"calibrator closed_form: {failed}; or use calibrator numeric.")
    z = formula(epsilon=epsilon, delta=delta, steps=steps, rate=rate) * (1 + KAPPA)
    return z / min(schedule.multiples)
