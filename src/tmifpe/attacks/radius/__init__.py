"""Attacks whose radius moves: down to the smallest perturbation, or up from one radius to the next."""
