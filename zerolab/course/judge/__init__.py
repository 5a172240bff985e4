"""How an exercise is written and judged: cases, claims, what is seen of an answer, and what to say of it."""
