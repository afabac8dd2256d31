"""What can be learnt about a run after it.

``convergence`` and ``predictive`` read released draws and public test rows: post-processing.
``reference`` reads training records without privacy: confidential unless the records are public.
"""
