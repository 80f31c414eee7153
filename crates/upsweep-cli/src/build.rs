//! What was built: commit and embedded records.

/// The commit that was built, with `-dirty` if code differed from it; `unknown` outside a repository.
pub const COMMIT: &str = env!("UPSWEEP_BUILD_COMMIT");

/// Version and commit, for `--version`.
pub const VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (", env!("UPSWEEP_BUILD_COMMIT"), ", ", env!("UPSWEEP_BUILD_PROFILE"), ")");

/// The committed records: path below `records/`, and JSON text.
pub const RECORDS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/records.rs"));
