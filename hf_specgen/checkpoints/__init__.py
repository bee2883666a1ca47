"""What a model's files say without reading its weights: config, headers, what is missing, memory."""
