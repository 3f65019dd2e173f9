// Programmatic dependent launch, in kernels that are compiled with DEPENDENT: blocks start while the kernel ahead runs.

// The next kernel's blocks may start once every block has been here.
__device__ inline void launch_dependents() {
#if DEPENDENT
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Until the kernel ahead has ended and what it wrote can be read. Each thread is here before it reads anything but
// prepared weights, and before it writes.
__device__ inline void await_kernel_ahead() {
#if DEPENDENT
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
