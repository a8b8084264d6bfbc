"""PAPT, K-GAT distribution matching, warm start: the only floor that imports TRL."""
