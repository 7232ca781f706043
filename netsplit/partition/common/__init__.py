"""What methods share: bytes and capacities, a problem as arrays, total orders."""
