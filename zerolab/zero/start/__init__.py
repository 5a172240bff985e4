"""What happens once, before training: what an engine refuses, its optimizer's probe, a model from the meta device."""
