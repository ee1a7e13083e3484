"""Code people already have: tasks made from a Hugging Face model, a Lightning module, or the parts of a plain loop."""
