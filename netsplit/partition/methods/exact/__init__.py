"""Placements and orders with proof, by constraint programming or by enumeration."""
