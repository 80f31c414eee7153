//! Wrong kernels that the gate must reject.
