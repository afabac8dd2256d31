"""From a YAML to a plan.

``file``      reads a config and its overrides;  ``yaml_text`` its YAML
``shipped``   configs that come with the package;  ``own_code`` code that a config names
``sections``  the section of a YAML that builds something, derived from its constructor
``model``     the whole config;  ``length`` its ``run:`` section
``plans``     the plan that it stands for
``refusals``  one sentence with the YAML path
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "file": ["load"],
        "model": ["Config", "dump", "is_secret", "modules_of_ones_own"],
        "plans": ["describe_data", "load_data", "make_mesh", "make_plan"],
        "refusals": ["ConfigError"],
        "yaml_text": ["parse_yaml"],
    },
)
