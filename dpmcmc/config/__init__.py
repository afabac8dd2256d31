"""YAML to Plan.

``file``      reads a YAML and says where in it an error lies
``shipped``   configs that come with the package;  ``own_code`` code that a config names
``sections``  the models of its sections, derived from constructors and docstrings
``model``     the whole configuration, and the plan that it stands for
"""
