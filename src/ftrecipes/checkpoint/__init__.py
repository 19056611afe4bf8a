"""What is saved, how it is published, and the proof that it is what was trained."""
