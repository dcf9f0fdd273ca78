"""The lab: what proves the product, and makes its bundled profiles. Not shipped; may import all."""
