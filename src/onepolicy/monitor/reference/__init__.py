"""The reference policy of the KL penalty, guarded while the policy is trained."""
