"""Where a dataset's deterministic part ends and its random part begins."""
