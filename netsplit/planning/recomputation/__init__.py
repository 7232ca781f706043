"""Which activations are computed again, chosen where a placement does not fit without that."""
