"""Settings: sections, parsing, checks and help. Standard library and PyYAML only."""
