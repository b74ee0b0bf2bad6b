"""From an image file to pixels in a batch, as torchvision's transforms define them."""
