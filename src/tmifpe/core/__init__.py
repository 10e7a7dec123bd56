"""What every other folder may use: types, registry, options, numerics, rng. It imports none of them."""
