"""What other tools call the settings of a run, a file each: read into our settings, and written from them."""
