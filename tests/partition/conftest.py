"""What the tests of the methods have in common."""

from __future__ import annotations
