"""Models: from the config.json of a decoder to the problems that its steps call, without weights or transformers."""
