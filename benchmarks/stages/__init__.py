"""Others' benchmarks, by their rules, with fastload's loader or decoder in them; nothing of theirs is changed."""
