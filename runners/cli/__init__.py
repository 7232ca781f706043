"""The command `netsplit`: the runners under one name, and what users ask of a tool beside them."""
