"""Bad input of every kind: nothing but a result that is right or one clear sentence may come of it."""
