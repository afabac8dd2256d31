"""Private answers to questions that are asked one after another.

``AboveThreshold``  which of a stream of scores are the first above a threshold, at one price for the whole stream
``EarlyStopping``   when to stop a chain, by scores on held-out private records
``Thresholdout``    a holdout that can be asked again and again without being overfitted
``GaussianAnswers`` means that stay near the truth however the questions follow from the answers
``LaplaceAnswers``  sums of bounded vectors at a pure ε
``TreeCounter``     running sums of a stream

All noise is exact: whole numbers from OS entropy on a public grid. A ledger reserves the price before a record is
looked at. How to use them: ``docs/mechanisms.md``.
"""

from dpmcmc.privacy.interactive.above_threshold import (
    AboveThreshold,
    EarlyStopping,
    Halted,
)
from dpmcmc.privacy.interactive.answers import GaussianAnswers, LaplaceAnswers
from dpmcmc.privacy.interactive.thresholdout import BudgetSpent, Thresholdout
from dpmcmc.privacy.interactive.tree_counter import TreeCounter

__all__ = [
    "AboveThreshold",
    "BudgetSpent",
    "EarlyStopping",
    "GaussianAnswers",
    "Halted",
    "LaplaceAnswers",
    "Thresholdout",
    "TreeCounter",
]
