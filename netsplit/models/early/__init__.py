"""The first convolutional networks that others are compared with: a few convolutions, then large layers."""
