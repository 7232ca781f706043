"""Baechi's three: m-TOPO, m-ETF and m-SCT."""
