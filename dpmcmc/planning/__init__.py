"""Everything that is decided before a record is read. Nothing in this room executes a plan.

``plan``         the Plan of a sampler's run, and what it shares with the plan of any release
``stages``       the releases before a run's chain, and all that a run has under privacy alone
``making``       ``plan``: from what is asked to a Plan
``noise``        its noise multipliers, and a private metric;  ``path`` a plan whose path is recorded
``description``  a plan in words, and the Verdict that it stores;  ``verdict`` gives that, with its conditions
``forecast``     what a budget buys;  ``saved`` a plan read from its files
"""
