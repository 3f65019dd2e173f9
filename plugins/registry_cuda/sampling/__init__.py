"""Drawing tokens from logits."""
