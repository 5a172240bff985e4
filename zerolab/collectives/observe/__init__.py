"""What looks at calls from outside: transports around transports, which a rank's calls pass on their way.

meter.py    counts calls and bytes          tracer.py   records when what ran
link.py     a simulated wire, in real time  check.py    compares all ranks' calls before each
records.py  small records from all ranks to all
"""
