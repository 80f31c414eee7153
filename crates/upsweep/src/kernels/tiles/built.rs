//! Written by `cargo xtask tiles`.

use super::Cubin;

#[cfg(feature = "cuda")]
macro_rules! image {
    ($name:literal) => {
        include_bytes!($name)
    };
}
#[cfg(not(feature = "cuda"))]
macro_rules! image {
    ($name:literal) => {
        &[]
    };
}

/// What compiled them.
pub const COMPILER: &str = "cutile 0.5.0, tileiras 13.5.37";

/// The kernel files they were made from, each with its SHA-256.
pub const SOURCES: &[(&str, &str)] = &[
    ("ops/reduce/cuda/12_tiles.rs", "1fa05e4254016b40bf6c8c6e5ba17d857dce29f0262229858780c22cac02bdeb"),
    ("ops/softmax/cuda/07_tiles.rs", "28aeeac58edda78ddfc47686040d83f049f41d9e5ca5886e97ecfcb2e3f545ae"),
];

pub(super) static CUBINS: &[Cubin] = &[
    Cubin {
        file: "ops/reduce/cuda/12_tiles.rs",
        expression: "sum<8192>",
        compute: (8, 0),
        threads: 128,
        symbol: "sum_entry",
        image: image!("reduce-sum-8192-sm_80.cubin"),
    },
    Cubin {
        file: "ops/reduce/cuda/12_tiles.rs",
        expression: "sum<8192>",
        compute: (9, 0),
        threads: 256,
        symbol: "sum_entry",
        image: image!("reduce-sum-8192-sm_90.cubin"),
    },
    Cubin {
        file: "ops/reduce/cuda/12_tiles.rs",
        expression: "sum<8192>",
        compute: (10, 0),
        threads: 256,
        symbol: "sum_entry",
        image: image!("reduce-sum-8192-sm_100.cubin"),
    },
    Cubin {
        file: "ops/reduce/cuda/12_tiles.rs",
        expression: "sum<8192>",
        compute: (12, 0),
        threads: 256,
        symbol: "sum_entry",
        image: image!("reduce-sum-8192-sm_120.cubin"),
    },
    Cubin {
        file: "ops/softmax/cuda/07_tiles.rs",
        expression: "softmax<32, 64>",
        compute: (8, 0),
        threads: 128,
        symbol: "softmax_entry",
        image: image!("softmax-softmax-32x64-sm_80.cubin"),
    },
    Cubin {
        file: "ops/softmax/cuda/07_tiles.rs",
        expression: "softmax<32, 64>",
        compute: (9, 0),
        threads: 128,
        symbol: "softmax_entry",
        image: image!("softmax-softmax-32x64-sm_90.cubin"),
    },
    Cubin {
        file: "ops/softmax/cuda/07_tiles.rs",
        expression: "softmax<32, 64>",
        compute: (10, 0),
        threads: 128,
        symbol: "softmax_entry",
        image: image!("softmax-softmax-32x64-sm_100.cubin"),
    },
    Cubin {
        file: "ops/softmax/cuda/07_tiles.rs",
        expression: "softmax<32, 64>",
        compute: (12, 0),
        threads: 128,
        symbol: "softmax_entry",
        image: image!("softmax-softmax-32x64-sm_120.cubin"),
    },
    Cubin {
        file: "ops/softmax/cuda/07_tiles.rs",
        expression: "softmax<4, 1024>",
        compute: (8, 0),
        threads: 128,
        symbol: "softmax_entry",
        image: image!("softmax-softmax-4x1024-sm_80.cubin"),
    },
    Cubin {
        file: "ops/softmax/cuda/07_tiles.rs",
        expression: "softmax<4, 1024>",
        compute: (9, 0),
        threads: 128,
        symbol: "softmax_entry",
        image: image!("softmax-softmax-4x1024-sm_90.cubin"),
    },
    Cubin {
        file: "ops/softmax/cuda/07_tiles.rs",
        expression: "softmax<4, 1024>",
        compute: (10, 0),
        threads: 128,
        symbol: "softmax_entry",
        image: image!("softmax-softmax-4x1024-sm_100.cubin"),
    },
    Cubin {
        file: "ops/softmax/cuda/07_tiles.rs",
        expression: "softmax<4, 1024>",
        compute: (12, 0),
        threads: 128,
        symbol: "softmax_entry",
        image: image!("softmax-softmax-4x1024-sm_120.cubin"),
    },
    Cubin {
        file: "ops/softmax/cuda/07_tiles.rs",
        expression: "softmax<1, 4096>",
        compute: (8, 0),
        threads: 128,
        symbol: "softmax_entry",
        image: image!("softmax-softmax-1x4096-sm_80.cubin"),
    },
    Cubin {
        file: "ops/softmax/cuda/07_tiles.rs",
        expression: "softmax<1, 4096>",
        compute: (9, 0),
        threads: 128,
        symbol: "softmax_entry",
        image: image!("softmax-softmax-1x4096-sm_90.cubin"),
    },
    Cubin {
        file: "ops/softmax/cuda/07_tiles.rs",
        expression: "softmax<1, 4096>",
        compute: (10, 0),
        threads: 128,
        symbol: "softmax_entry",
        image: image!("softmax-softmax-1x4096-sm_100.cubin"),
    },
    Cubin {
        file: "ops/softmax/cuda/07_tiles.rs",
        expression: "softmax<1, 4096>",
        compute: (12, 0),
        threads: 128,
        symbol: "softmax_entry",
        image: image!("softmax-softmax-1x4096-sm_120.cubin"),
    },
    Cubin {
        file: "ops/softmax/cuda/07_tiles.rs",
        expression: "softmax<1, 16384>",
        compute: (8, 0),
        threads: 512,
        symbol: "softmax_entry",
        image: image!("softmax-softmax-1x16384-sm_80.cubin"),
    },
    Cubin {
        file: "ops/softmax/cuda/07_tiles.rs",
        expression: "softmax<1, 16384>",
        compute: (9, 0),
        threads: 512,
        symbol: "softmax_entry",
        image: image!("softmax-softmax-1x16384-sm_90.cubin"),
    },
    Cubin {
        file: "ops/softmax/cuda/07_tiles.rs",
        expression: "softmax<1, 16384>",
        compute: (10, 0),
        threads: 512,
        symbol: "softmax_entry",
        image: image!("softmax-softmax-1x16384-sm_100.cubin"),
    },
    Cubin {
        file: "ops/softmax/cuda/07_tiles.rs",
        expression: "softmax<1, 16384>",
        compute: (12, 0),
        threads: 512,
        symbol: "softmax_entry",
        image: image!("softmax-softmax-1x16384-sm_120.cubin"),
    },
];
