"""Local files: written whole or not at all, opened only if they are files, hashed, and the room that they need."""
