"""Reference fused CUDA kernels."""
