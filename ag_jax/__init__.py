"""Pre-train, fine-tune and look inside Transformer encoders whose attention is guided or attacked."""
