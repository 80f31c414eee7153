//! The document's nine boxes, each met or not met with its evidence.

use crate::error::Result;
use crate::record::Record;
use crate::target::Target;
use crate::verify::{Context, OnProgress};

/// What [`checklist`] is asked.
#[derive(Clone, Copy, Debug)]
pub struct ChecklistOptions {
    /// Elements of the ladder's table; the document asks for 2^28.
    pub n: u64,
    /// Timed calls of a rung.
    pub repeats: u32,
    /// The seed that every datum follows from.
    pub seed: u64,
}

/// Verifies, climbs, and fills [`Record::boxes`].
///
/// # Errors
/// [`crate::GateError`]: a wrong argument, or what the driver refuses.
pub fn checklist(
    _target: &mut dyn Target,
    _options: ChecklistOptions,
    _context: &Context,
    _progress: OnProgress<'_>,
) -> Result<Record> {
    unimplemented!()
}
