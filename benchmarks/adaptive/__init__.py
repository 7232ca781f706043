"""A training whose workers change: with a plan that stays, and with one that changes."""
