"""The contract of sinks, as tests that every kind of sink runs."""
