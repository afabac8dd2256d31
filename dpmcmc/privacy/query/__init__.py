"""The only place that reads records in a step.

``query``           one noisy sum of clipped per-record gradients;  ``per_record_gradients`` without a closed form
``selection``       which records a step reads;  ``fixed_size_selection`` and ``shard_selection`` other schemes of it
``fixed_point``     exact sums, so that no rounding exceeds the sensitivity;  ``grid`` how finely they are rounded
``outer_products``  exact sums of a network's layers
``second_moment``   what a sampler may ask for beside its gradient;  ``moment_sum`` its exact sum and noise
``metric``          the norm in which gradients are clipped;  ``symmetric`` dense and diagonal matrices
``randomness``      secret keys and noise;  ``chacha`` and ``integer_noise`` those of a hardened run
"""
