"""From a problem to a plan: a method's answer verified, compiled, simulated, explained, compared."""
