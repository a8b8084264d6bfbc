"""Harnesses, metrics with intervals, reports and plots."""
