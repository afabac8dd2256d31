"""Figure 3.2 as data: every method at every ε, several times, on one data set.

``config``    what a panel's YAML says
``trial``     one run of one method: what goes in, what comes out
``methods``   the list of methods; ``samplers``, ``one_shot``, ``printed`` run them, many trials at a time
``scores``    from draws to numbers; ``posterior`` the non-private reference they are held against
``results``   the table of results, which a killed run goes on from
``choose``    how each method's settings are chosen;  ``compare`` and ``draw`` what is made of the results
"""
