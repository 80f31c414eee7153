//! Device code that kernels share: the layer (all that kernels use beyond plain CUDA), the operators, the collectives of
//! reductions and of scans, the rows of a softmax.

pub mod tiles;

/// The headers, in the order in which they are put before a kernel file's text.
pub const HEADERS: [(&str, &str); 5] = [
    ("kernels/layer.cuh", include_str!("layer.cuh")),
    ("kernels/operators.cuh", include_str!("operators.cuh")),
    ("kernels/collectives.cuh", include_str!("collectives.cuh")),
    ("kernels/softmax.cuh", include_str!("softmax.cuh")),
    ("kernels/scan.cuh", include_str!("scan.cuh")),
];
