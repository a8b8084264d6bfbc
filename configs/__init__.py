"""YAML only: run configurations and accelerate launch files."""
