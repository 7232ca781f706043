"""Devices and the links between them: given by a config, or found and probed."""
