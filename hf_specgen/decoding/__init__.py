"""The decoding loop and what a row needs on its way through it."""
