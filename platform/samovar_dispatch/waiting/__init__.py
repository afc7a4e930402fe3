"""Where calls wait for a slot: order, predicted wait, whom to refuse."""
