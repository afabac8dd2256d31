"""The ledger: one file per data set that holds its budget, and admits runs until it is spent.

``ledger``    the room's face: ``init``, ``reserve``, ``begin``, ``settle``, ``extend``
``terms``     what ``init`` fixes;  ``book`` what the entries add up to;  ``state`` for people
``filters``   which total may be spent when runs are chosen adaptively, with proofs;  ``costs`` of one event
``programme`` runs that are all fixed in advance, composed tightly
``store``     the SQLite database, kept in one locked file (``inode``, and ``older`` for files of version 1)
``chain``     entries that cannot be removed or edited unnoticed
``fitting``   which ε a refused run should ask for
"""

from dpmcmc.privacy.ledger.book import Run
from dpmcmc.privacy.ledger.chain import BrokenChain, Entry, LedgerError, Receipt
from dpmcmc.privacy.ledger.ledger import Ledger, OverBudget
from dpmcmc.privacy.ledger.state import State
from dpmcmc.privacy.ledger.terms import Terms

__all__ = ["BrokenChain", "Entry", "Ledger", "LedgerError", "OverBudget", "Receipt", "Run", "State", "Terms"]
