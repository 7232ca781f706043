"""Unity: what is cut along which dimension over which devices, found by a dynamic programme."""
