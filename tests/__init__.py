"""The claims of Penstock, tiered by what they need: unit (nothing), pg (real servers)."""
