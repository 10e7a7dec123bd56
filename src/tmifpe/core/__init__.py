"""What every other folder may use: types, registry, options, numerics, seeding. Knows nothing of them."""
