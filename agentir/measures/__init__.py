"""Measures of rankings: runs and relevance judgements, trec_eval's measures, intervals, slices and comparisons."""
