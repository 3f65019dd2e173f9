"""The problems that ``tune`` is told: from a shapes file, from a model's config, from what calls missed."""
