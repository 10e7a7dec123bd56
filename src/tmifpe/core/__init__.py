"""What every other folder may use: types, registry, options, numerics, rng. Knows nothing of them."""
