"""The parts of an explanation: the critical path, what fills the devices, the cut, what binds, the words."""
