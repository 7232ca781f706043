"""Measurements that are claims: run by hand, each as a module, printing ratios measured in one run."""
