"""Conclusions from released numbers, at no further cost to privacy.

``convergence``  effective sample size and R-hat of released draws
``predictive``   predictions from released draws, and their scores on public test rows
"""
