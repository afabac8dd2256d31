"""From a YAML to a plan.

``file``      reads a config and its overrides;  ``shipped`` the configs that come with the package
``sections``  the section of a YAML that builds something, derived from its constructor; a user's own code; refusals
``model``     the whole config, with its ``run:`` section
``plans``     the plan that it stands for
``released``  plan and data of a run that was released
``for_editors``  JSON schema of a config
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "file": ["load", "parse_yaml"],
        "model": ["Config", "dump", "is_secret", "modules_of_ones_own"],
        "sections": ["ConfigError"],
        "released": ["released"],
        "plans": [
            "describe_data",
            "load_data",
            "make_mesh",
            "make_plan",
            "run_device",
        ],
    },
)
