"""From a YAML to a plan.

``file``      reads a config and its overrides;  ``shipped`` the configs that come with the package
``yaml_reading``, ``yaml_writing``   YAML of configs;  ``refusals`` of a config, by YAML path
``sections``  the section of a YAML that builds something, derived from its constructor;  ``named_code`` of a user
``model``     the whole config;  ``run_section`` how long it runs, and where;  ``grid`` a YAML of many configs
``plans``     the plan that it stands for
``released``  plan and data of a run that was released
``for_editors``  JSON schema of a config
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "file": ["load"],
        "model": ["Config", "dump", "is_secret"],
        "refusals": ["ConfigError"],
        "released": ["load_released_plan"],
        "yaml_reading": ["parse_yaml"],
        "plans": [
            "describe_data",
            "load_data",
            "make_mesh",
            "make_plan",
            "run_device",
        ],
    },
)
