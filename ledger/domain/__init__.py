"""The pure core: facts in, exposure out. No clock, no environment, no database, no network."""
