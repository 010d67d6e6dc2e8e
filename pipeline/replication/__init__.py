"""Test the claims of Gahlot, Yin and Shankar (2020) on the runs of every study that fits."""

from pipeline.replication.claim_data import ClaimCriteria, ClaimEvidence, RunRecord
from pipeline.replication.claims import CLAIMS, ClaimResult, evaluate_claims
from pipeline.replication.gain_slopes import gain_slopes

__all__ = ["CLAIMS", "ClaimCriteria", "ClaimEvidence", "ClaimResult", "RunRecord", "evaluate_claims", "gain_slopes"]
