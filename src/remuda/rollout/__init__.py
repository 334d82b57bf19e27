"""Playing worlds with given weights: worlds and policies in, fragments out."""
