"""Names of the objectives that only the learning bench trains on; the file of each family cites its source."""

from enum import StrEnum


class Baseline(StrEnum):
    """What other systems train on, and what was tried beside production's objectives."""

    EXPECTED_LENGTH = "expected_length"  # -J
    LOG_EXPECTED_LENGTH = "log_expected_length"  # -log J
    REINFORCE = "reinforce"  # J from accept and reject flags alone
    FORWARD_KL_ACCEPTED = "forward_kl_accepted"  # Aurora's release
    FORWARD_KL_WRONG = "forward_kl_wrong"  # OSD
    REVERSE_KL = "reverse_kl"  # DistillSpec
    JENSEN_SHANNON = "jensen_shannon"  # DistillSpec
    ON_POLICY_MIX = "on_policy_mix"  # DistillSpec: soft, on committed text and on drafted chains
    TVD_PLUS_PLUS = "tvd_plus_plus"
    LK_MIX = "lk_mix"
    CE_L1 = "ce_l1"  # DSpark
    SELECTIVE = "selective"  # AdaSPEC
    GROUP_TREE = "group_tree"  # GTO
