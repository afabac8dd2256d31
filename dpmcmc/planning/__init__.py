"""Everything that is decided before a record is read. Nothing in this room executes a plan.

``plan``         the Plan: its noise, its schedule, its guarantee
``description``  a plan in words
"""
