"""Parts of ``python -m experiments.coverage``.

``tasks``       models, rows and truths
``ways``        samplers and mechanisms, each with its settings
``scores``      coverage, TARP, ranks, CRPS and log score of draws against a truth
``reference``   the non-private posterior of a table
``cells``       one row of the results: a task, a way, d, N, ε
``predictive``  calibration of predicted probabilities on Adult
``picture``     coverage against width
"""
