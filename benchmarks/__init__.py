"""How fast the hot paths are against their competitors."""
