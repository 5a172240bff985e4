"""Other people's formats: Hugging Face's folders, and torch's distributed checkpoints (DCP)."""
