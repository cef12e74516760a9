"""Peak memory, step time, validity and prices: what the trials so far make us believe. Pure, scipy on demand."""
