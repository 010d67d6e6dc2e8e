"""The sentences of Gahlot, Yin and Shankar (2020), each a test on runs of any study that fits."""

from pipeline.stats.sentences.evidence import Evidence, Rule
from pipeline.stats.sentences.gain_slopes import gain_slopes
from pipeline.stats.sentences.judged import SENTENCES, Finding, judge_sentences
from pipeline.stats.sentences.trials import Trial

__all__ = ["SENTENCES", "Evidence", "Finding", "Rule", "Trial", "gain_slopes", "judge_sentences"]
