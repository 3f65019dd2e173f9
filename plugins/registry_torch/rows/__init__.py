"""torch's operators over the rows of a tensor, where they need more than a call."""
