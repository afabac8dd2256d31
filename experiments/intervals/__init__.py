"""Intervals of ``dpmcmc.fit`` on simulated tables whose truths are not drawn from the library's prior.

    python -m experiments.intervals [--quick] [--config configs/figures/intervals.yaml] [--only NAME ...] [--tables N]
                                    [--workers N] --out DIR

A row is a design at one N and one ε. Only the public interface is used: a table, its schema, ``dpmcmc.fit`` and
``result.summary``. Whatever the mechanism becomes, this command measures it.

``designs``    schema, truth and simulator of each design
``simulators`` rows and labels of the designs
``measure``    one table, and one row from its tables
``table``      goals, what a row shows against them, and the order of rows: failures first
"""
