"""The seeded defects: name, file, what is there, what is put in its place, and the test that must
fail, with its environment."""
