"""Bug or rounding? Speculative text against plain decoding's own noise, sampled tokens against the target's own law."""
