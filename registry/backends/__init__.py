"""How a backend compiles, fingerprints and launches. Base classes for implementations; see docs/writing-a-plugin.md."""
