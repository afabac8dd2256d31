"""Reproductions of the sources, one plain script a file: ``python -m experiments.sources.NAME [--quick] --out DIR``.

A script states its formula, takes the cost of its release from the accountant's events, and writes ``results.csv`` and
its picture. It has no YAML, ledger or verdict, and nothing here is for a person's own data. The package imports none of
it.
"""
