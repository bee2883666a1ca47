"""Find a pair's best settings, and keep them: `hf-specgen tune`."""
