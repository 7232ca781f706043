"""What methods share: atoms, capacities, a problem as arrays, total orders."""
