"""The only place that reads records in a step.

``query``           one noisy sum of clipped per-record gradients
``per_record_gradients``  the same without a closed form;  ``label_blind`` weights that do not see a label
``selection``       which records a step reads, by each scheme, on one device or a shard
``exact_sums``      exact sums of clipped rows, so that no rounding exceeds the sensitivity;  ``rows_in_place`` on a CPU
``outer_products``  exact sums of a network's layers;  ``record_sums`` and ``integer_rows`` of a whole table
``metric``          the norm in which gradients are clipped
``second_moment``   that a sampler may ask for;  ``moment_sum`` its exact sum, ``matrix_forms`` dense or diagonal
``randomness``      secret keys and noise;  ``chacha`` its bits
``integer_noise``   noise in integers alone;  ``ranks`` from random words
``gaussian_release``  one vector, released once;  ``gram_release`` a second moment of rows;  ``gradient_rows``
``randomised_response``  a table of probabilities for labels
"""
