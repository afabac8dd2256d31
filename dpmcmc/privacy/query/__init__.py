"""The only place that reads records in a step.

``query``           one noisy sum of clipped per-record gradients
``selection``       which records a step reads
``fixed_point``     exact sums, so that no rounding exceeds the sensitivity
``outer_products``  the same for a second moment
``second_moment``   what a sampler may ask for beside its gradient;  ``metric`` the norm in which gradients are clipped
``randomness``      secret keys and noise;  ``chacha`` and ``integer_noise`` those of a hardened run
"""
