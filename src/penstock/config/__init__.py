"""The two files a user writes, read, checked and compiled: from `penstock.toml` to a `Deployment`."""
