"""What generates: claims and graph instances, text, episodes, topologies."""
