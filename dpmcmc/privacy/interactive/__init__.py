"""Private answers to questions that are asked one after another.

``AboveThreshold``  which of a stream of scores is the first above a threshold, at one price for the whole stream
``EarlyStopping``   when to stop a chain, by scores on held-out private records
``Thresholdout``    a holdout that can be asked again and again without being overfitted

All noise is exact: whole numbers from OS entropy on a public grid (``discrete_laplace``). ``charge`` has a ledger
reserve the price before a record is looked at. How to use them: ``docs/mechanisms.md``.
"""

from dpmcmc.privacy.interactive.above_threshold import (
    AboveThreshold,
    EarlyStopping,
    Halted,
)
from dpmcmc.privacy.interactive.thresholdout import BudgetSpent, Thresholdout

__all__ = ["AboveThreshold", "BudgetSpent", "EarlyStopping", "Halted", "Thresholdout"]
