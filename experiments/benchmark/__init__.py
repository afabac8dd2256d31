"""Private regression on public tables: every method of the library, and its rivals.

    python -m experiments.benchmark [--tables NAME ...] [--methods NAME ...] [--epsilons E ...] [--repeats N] [--quick]
                                    --out DIR

``tables``   the list of tables with what is public about their columns; it was committed before the first run
"""
