"""How variables travel between devices, chosen once a placement is known."""
