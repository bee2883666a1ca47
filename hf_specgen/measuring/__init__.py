"""What to expect of a pair: acceptance from its texts, costs from rounds of the real loop."""
