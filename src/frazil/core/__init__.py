"""Types that every layer uses: names, offsets, rows, errors, settings, the clock and the disk."""
