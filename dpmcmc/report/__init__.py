"""How a plan, a run and a result are shown: tables, lines, figures, files, and the page of a run.

``public_facts``  facts that may be shown before anything is computed from a record
``console``       lines that a run prints;  ``progress`` how far it is
``summary``       the table of a result;  ``coefficients`` which numbers it has, and in which units
``page``          ``report.html``, from ``templates/page.html``;  ``words`` its estimand and method in words
``files``         contents of ``draws.nc`` and ``privacy.json``
``figures``       traces, calibration, ε against δ, intervals
``per_record``    cost of a run to each record; confidential
"""
