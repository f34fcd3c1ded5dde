"""Pure tensor functions: each is a formula with its source, and knows nothing of environments or devices."""
