"""Everything that is decided before a record is read. Nothing in this room executes a plan.

``plan``         a Plan, which is a list of ``stages``;  ``whole_plan`` what these see of it
``sampler_run``  the stage of chains;  ``private_metric`` of a metric;  ``mechanism_release`` of a mechanism
``noise``        its noise multipliers;  ``path`` a plan whose path is recorded;  ``own_code`` code that users wrote
``description``  a plan in words;  ``settings_json`` its settings;  ``permitted_uses`` the Verdict that it stores
``verdict``      gives that;  ``obstacles`` its conditions
``forecast``     what a budget buys;  ``saved`` a plan read from its files
"""
