"""The only place that reads records in a step.

``query``           one noisy sum of clipped per-record gradients
``per_record_gradients``  the same without a closed form; weights that do not see a label
``selection``       which records a step reads, by each scheme, on one device or a shard
``exact_sums``      the rows of a batch, and their exact sums, so that no rounding exceeds the sensitivity
``outer_products``  exact sums of a network's layers
``metric``          the norm in which gradients are clipped, and the second moment that a sampler may ask for
``randomness``      secret keys, ChaCha20 and noise;  ``integer_noise`` noise in integers alone
``gaussian_release``  one vector or Gram matrix, released once
"""
