"""The only readers of the outside world, a file each."""
