"""The nouns: knobs, candidates, contracts, trials, outcomes, verdicts. Pure data, no IO."""
