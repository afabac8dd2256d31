"""Figure 3.1: samplers on a generated Bayesian linear regression in two dimensions, whose posterior is known.

``settings``  the YAML;  ``problem``  records and their posterior;  ``methods``  one plan for each line of the figure
``measures``  errors of draws, and rows of the table;  ``picture``  the figure
"""
