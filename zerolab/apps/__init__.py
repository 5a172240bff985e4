"""What stands around the library: nobody needs it to follow ZeRO, and the library never calls it."""
