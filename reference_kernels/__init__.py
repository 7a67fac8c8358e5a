"""Hand-fused CUDA kernels that findings and bench compare against; REFERENCES lists them."""
