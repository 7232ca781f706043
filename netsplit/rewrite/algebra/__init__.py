"""Rules that replace some operators by others that compute the same: kept, proven, matched and applied."""
