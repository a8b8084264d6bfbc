"""The worlds: evidence graphs and walking, topologies, the workflow runtime, fault recovery."""
