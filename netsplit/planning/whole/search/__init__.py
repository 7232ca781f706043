"""The search for a whole plan: what is tried, by whom it is answered, and when each part ends."""
