"""Everything that is decided before a record is read. Nothing in this room executes a plan.

``any_plan``     the plan of any release;  ``plan`` that of a sampler's run
``stages``       the releases before a run's chain, and all that a run has under privacy alone
``making``       ``plan``: from what is asked to a Plan
``noise``        its noise multipliers;  ``private_metric`` a metric;  ``path`` a plan whose path is recorded
``description``  a plan in words;  ``settings_json`` its settings;  ``permitted_uses`` the Verdict that it stores
``verdict``      gives that;  ``obstacles`` its conditions
``forecast``     what a budget buys;  ``saved`` a plan read from its files
"""
