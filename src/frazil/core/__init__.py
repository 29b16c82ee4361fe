"""What every layer speaks: names, offsets, rows, errors, settings, the clock and the disk."""
