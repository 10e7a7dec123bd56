"""Reasons to doubt a number: of the model before the attack, of the attack after it."""
