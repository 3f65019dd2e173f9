"""Attention that caches latent vectors, DeepSeek's, over the latents themselves where one token is new."""
