"""Turn findings into a plan, by trials and a proof."""
