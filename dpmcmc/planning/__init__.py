"""Everything that is decided before a record is read. Nothing in this room executes a plan.

``plan``         the Plan: its noise, its schedule, its guarantee
``permitted``    the Verdict that a plan stores; ``verdict`` gives it
"""
