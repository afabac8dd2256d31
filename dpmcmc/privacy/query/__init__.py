"""The only place that reads records in a step.

``query``           one noisy sum of clipped per-record gradients;  ``per_record_gradients`` without a closed form
``selection``       which records a step reads, by each scheme, on one device or a shard
``exact_sums``      exact sums, so that no rounding exceeds the sensitivity;  ``rows`` the rows of a batch
``outer_products``  exact sums of a network's layers;  ``label_blind`` clipping that does not see a label
``second_moment``   what a sampler may ask for beside its gradient, its exact sum and noise; symmetric matrices
``metric``          the norm in which gradients are clipped
``randomness``      secret keys, ChaCha20 and noise;  ``integer_noise`` noise in integers alone
``gaussian_release``  one vector or Gram matrix, released once
"""
