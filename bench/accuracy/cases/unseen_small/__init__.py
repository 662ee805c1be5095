"""53 training steps that were scored before any rule was fitted to them."""
