"""Which placement is best: cost models, planners and what they prove. Pure, no runtime."""
