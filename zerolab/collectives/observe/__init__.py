"""What looks at calls from outside: transports around transports, which a rank's calls pass on their way."""
