"""What a model has read: KV cache with one length per row, masks, and the forwards that go with them."""
