"""How a plan, a run and a result are shown: tables, lines, figures, files, and the page of a run.

``console``       lines that a run prints: facts that are public before anything is computed, and how far it is
``summary``       the table of a result, in the units of its columns
``figures``       traces, calibration, ε against δ
``page``          ``report.html``, from ``templates/page.html``; the contents of ``draws.nc`` and ``privacy.json``
``sweep_page``    the page of a sweep, and its lines on a console
``pictures``      figures drawn by a process of their own
"""
