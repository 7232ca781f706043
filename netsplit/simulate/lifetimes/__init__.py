"""Which bytes are alive when: inside a segment, and on a device over its instructions."""
