"""What those who run a deployment see of it and may ask of it."""
