"""What the paper does not show."""
