"""Which part of a pair goes on which device, before anything is loaded."""
