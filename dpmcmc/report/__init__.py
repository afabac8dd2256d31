"""How a plan, a run and a result are shown: tables, lines, figures, files, and the page of a run.

``console``       lines that a run prints;  ``screen`` those that a plan shares;  ``progress`` how far it is
``public_facts``  facts that are public before anything is computed;  ``circumstances`` whose records these are
``summary``       the table of a result;  ``coefficients`` in the units of its columns
``figures``       traces, calibration, ε against δ, intervals
``page``          ``report.html``, from ``templates/page.html``;  ``privacy_json`` that file's content
``sweep_page``    the page of a sweep, and its lines on a console
``pictures``      figures drawn by a process of their own
"""
