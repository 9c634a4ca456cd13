"""What a chat template does to a conversation, and what that means for training on it."""
