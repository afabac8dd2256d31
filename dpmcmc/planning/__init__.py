"""Everything that is decided before a record is read. Nothing in this room executes a plan.

``plan``         the Plan of a sampler's run, and what it shares with the plan of any release
``making``       ``plan``: from what is asked to a Plan;  ``noise`` its noise multipliers
``metric``       a private metric;  ``path`` a plan whose path is recorded
``permitted``    the Verdict that a plan stores;  ``verdict`` gives it, with the conditions of intervals
``forecast``     what a budget buys;  ``description`` a plan in words;  ``saved`` a plan read from its files
"""
