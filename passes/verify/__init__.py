"""Every pass is checked: a model before and after it computes the same within what the pass declares."""
