//! Built kernels, loaded: entries, where the block's shared variables lie, and which line a place is.

use crate::engine::abi::{ENGINE, Engine};
use crate::engine::worker::Entry;
use addr2line::Context;
use addr2line::gimli::{DwarfSections, EndianSlice, RunTimeEndian, SectionId};
use libloading::Library as Handle;
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::io::Write;
use std::sync::Mutex;
use upsweep::Error;
use upsweep::device::cache::Artefact;

/// A place in a kernel's text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Line {
    /// The file, below `src/` of its crate.
    pub file: String,
    /// Its line, from 1.
    pub line: u32,
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.line == 0 { f.write_str(&self.file) } else { write!(f, "{}:{}", self.file, self.line) }
    }
}

/// Where a place is: in the kernel file, and in the header whose function was inlined there, if it is one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The line of the kernel file, or of the outermost function that is known.
    pub line: Line,
    /// The line of the header.
    pub within: Option<Line>,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.within {
            None => self.line.fmt(f),
            Some(within) => write!(f, "{} (in {within})", self.line),
        }
    }
}

/// A variable in shared memory.
struct Variable {
    start: u64,
    bytes: u64,
    name: String,
}

type Lines<'a> = Context<EndianSlice<'a, RunTimeEndian>>;

/// A library of kernels of one file.
pub(crate) struct Library {
    handle: Handle,
    symbols: Vec<(String, String)>,
    /// Where it lies in memory, and its bytes.
    image: (u64, u64),
    /// Bytes of all shared variables.
    shared_bytes: u64,
    variables: Vec<Variable>,
    file: String,
    artefact: Vec<u8>,
    lines: Mutex<HashMap<u32, Place>>,
}

impl Library {
    pub(crate) fn load(artefact: Artefact, file: &str) -> Result<Library, Error> {
        let failed = |log: String| Error::Compile { kernel: file.to_string(), target: "the simulator".into(), log };
        // The loader takes a file; once loaded it needs no name.
        let mut stored =
            tempfile::Builder::new().prefix("upsweep-sim-").suffix(".so").tempfile().map_err(|e| failed(e.to_string()))?;
        stored.write_all(&artefact.image).map_err(|error| failed(error.to_string()))?;
        // SAFETY: the library was built from our own text; its initialisers only touch itself.
        let handle = unsafe { Handle::new(stored.path()) }.map_err(|error| failed(error.to_string()))?;
        let parsed = object::File::parse(&*artefact.image).map_err(|error| failed(error.to_string()))?;
        let mut variables: Vec<Variable> = parsed
            .symbols()
            .filter(|symbol| symbol.kind() == SymbolKind::Tls && !symbol.is_undefined())
            .map(|symbol| Variable {
                start: symbol.address(),
                bytes: symbol.size(),
                name: variable_name(symbol.name().unwrap_or_default()).to_string(),
            })
            .collect();
        variables.sort_by_key(|variable| variable.start);
        let length = parsed.segments().map(|segment| segment.address() + segment.size()).max().unwrap_or(0);
        let mut library = Library {
            handle,
            symbols: artefact.symbols,
            image: (0, length),
            shared_bytes: 0,
            variables,
            file: file.to_string(),
            artefact: Vec::new(),
            lines: Mutex::default(),
        };
        drop(parsed);
        library.artefact = artefact.image;
        // SAFETY: the functions are those of `simulated.h`.
        unsafe {
            let attach = library
                .handle
                .get::<unsafe extern "C" fn(*const Engine)>(b"upsweep_attach\0")
                .map_err(|e| failed(e.to_string()))?;
            attach(&raw const ENGINE);
        }
        let anchor = library.anchor_function().map_err(failed)?;
        let (base, _, bytes) = thread_local_block(anchor as usize as u64)
            .ok_or_else(|| failed("the loader does not tell where it loaded".into()))?;
        library.image.0 = base;
        library.shared_bytes = bytes;
        Ok(library)
    }

    fn anchor_function(&self) -> Result<unsafe extern "C" fn() -> *mut c_void, String> {
        // SAFETY: the function is that of `simulated.h`.
        unsafe { self.handle.get::<unsafe extern "C" fn() -> *mut c_void>(b"upsweep_shared\0") }
            .map(|function| *function)
            .map_err(|error| error.to_string())
    }

    pub(crate) fn image(&self) -> (u64, u64) {
        self.image
    }

    pub(crate) fn entry(&self, expression: &str) -> Result<Entry, Error> {
        let symbol = self.symbols.iter().find(|(known, _)| known == expression).map_or(expression, |(_, symbol)| symbol);
        let name = format!("{symbol}\0");
        // SAFETY: entries have this signature.
        unsafe { self.handle.get::<Entry>(name.as_bytes()) }.map(|entry| *entry).map_err(|error| Error::Compile {
            kernel: expression.to_string(),
            target: "the simulator".into(),
            log: error.to_string(),
        })
    }

    /// Address and bytes of the calling thread's copy of the shared variables.
    pub(crate) fn shared(&self) -> (u64, u64) {
        let Ok(anchor) = self.anchor_function() else { return (0, 0) };
        // SAFETY: it only tells an address, and by that makes the copy.
        unsafe { anchor() };
        thread_local_block(anchor as usize as u64).map_or((0, 0), |(_, start, _)| (start, self.shared_bytes))
    }

    /// The shared variable at an offset, and the offset in it.
    pub(crate) fn variable(&self, offset: u64) -> Option<(&str, u64)> {
        let known = self.variables.iter().rev().find(|variable| variable.start <= offset)?;
        (offset < known.start + known.bytes).then(|| (known.name.as_str(), offset - known.start))
    }

    /// The line of a place.
    pub(crate) fn place(&self, place: u32) -> Place {
        let unknown = || Place { line: Line { file: self.file.clone(), line: 0 }, within: None };
        self.known().get(&place).cloned().unwrap_or_else(unknown)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Place>> {
        self.lines.lock().unwrap_or_else(|error| error.into_inner())
    }

    /// Looks places up, so that [`Library::place`] knows them.
    pub(crate) fn look_up(&self, places: impl Iterator<Item = u32>) {
        let mut known = self.known();
        let mut unknown: Vec<u32> = places.filter(|place| !known.contains_key(place)).collect();
        unknown.sort_unstable();
        unknown.dedup();
        if unknown.is_empty() {
            return;
        }
        let Ok(parsed) = object::File::parse(&*self.artefact) else { return };
        let endian = if parsed.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
        let section = |id: SectionId| -> Result<_, object::Error> {
            parsed.section_by_name(id.name()).map_or(Ok(Default::default()), |section| section.uncompressed_data())
        };
        let Ok(sections) = DwarfSections::load(section) else { return };
        let Ok(lines) = Context::from_dwarf(sections.borrow(|bytes| EndianSlice::new(bytes, endian))) else { return };
        known.extend(unknown.into_iter().filter_map(|place| Some((place, self.resolve(&lines, place)?))));
    }

    fn resolve(&self, lines: &Lines<'_>, place: u32) -> Option<Place> {
        // A return address is behind the call.
        let mut frames = lines.find_frames(u64::from(place).checked_sub(1)?).skip_all_loads().ok()?;
        let mut stack = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            if let Some(location) = frame.location
                && let (Some(file), Some(line)) = (location.file, location.line)
            {
                stack.push(Line { file: shorten(file), line });
            }
        }
        // What the host's side of the layer does is the layer's.
        stack.retain(|line| line.file != crate::compiler::HEADER.0);
        let innermost = stack.first().cloned()?;
        let own = stack.iter().find(|line| line.file == self.file).cloned();
        let line = own.or_else(|| stack.last().cloned())?;
        Some(Place { within: (innermost != line).then_some(innermost), line })
    }
}

/// File names as sources name them: the compiler may put the folder that it ran in before them.
fn shorten(file: &str) -> String {
    let known = ["kernels/", "ops/", "upsweep-gate/", "upsweep-sim/"];
    let start = known.iter().filter_map(|folder| file.find(folder)).min();
    match start {
        Some(start) => file[start..].to_string(),
        None => file.rsplit('/').next().unwrap_or(file).to_string(),
    }
}

/// The variable of a mangled name of a function's static variable: the last identifier in it.
fn variable_name(mangled: &str) -> &str {
    let bytes = mangled.as_bytes();
    let mut found = mangled;
    for start in 0..bytes.len() {
        // An identifier is its length in decimal digits, then itself.
        if !bytes[start].is_ascii_digit() || (start > 0 && bytes[start - 1].is_ascii_digit()) {
            continue;
        }
        let digits = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let Ok(length) = mangled[start..start + digits].parse::<usize>() else { continue };
        let (first, end) = (start + digits, start + digits + length);
        let ends = mangled.get(end..).is_some_and(|rest| rest.is_empty() || rest.starts_with('_') || rest.starts_with('E'));
        if length > 0 && end <= bytes.len() && ends && !bytes[first].is_ascii_digit() {
            found = &mangled[first..end];
        }
    }
    found
}

/// Of the library that holds an address: where it was loaded, the calling thread's block of its thread-local variables, and
/// that block's bytes.
fn thread_local_block(address: u64) -> Option<(u64, u64, u64)> {
    struct Search {
        address: u64,
        found: Option<(u64, u64, u64)>,
    }
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
        // SAFETY: the loader hands over a live record, and `data` is the search below.
        let (info, search) = unsafe { (&*info, &mut *data.cast::<Search>()) };
        // SAFETY: the loader's table has so many headers.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let base = info.dlpi_addr;
        let holds = |header: &libc::Elf64_Phdr| {
            header.p_type == libc::PT_LOAD && search.address.wrapping_sub(base + header.p_vaddr) < header.p_memsz
        };
        if !headers.iter().any(holds) {
            return 0;
        }
        let bytes = headers.iter().find(|header| header.p_type == libc::PT_TLS).map_or(0, |header| header.p_memsz);
        search.found = Some((base, info.dlpi_tls_data as u64, bytes));
        1
    }
    let mut search = Search { address, found: None };
    // SAFETY: the callback has the expected signature, and the search outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_named_by_their_last_identifier() {
        assert_eq!(variable_name("_ZZN7upsweep16reduce_divergentINS_3SumIfEENS_8ElementsELj256EEvPKvyPvS5_yE6shared"), "shared");
        assert_eq!(variable_name("_ZZN7upsweep17reduce_last_blockEvE7is_last"), "is_last");
        assert_eq!(variable_name("_ZZN7upsweep1kEvE6shared_0"), "shared");
        assert_eq!(variable_name("plain"), "plain");
    }

    #[test]
    fn files_are_named_below_their_crate() {
        assert_eq!(shorten("/tmp/x/ops/reduce/cuda/00_divergent.cu"), "ops/reduce/cuda/00_divergent.cu");
        assert_eq!(shorten("kernels/layer.cuh"), "kernels/layer.cuh");
        assert_eq!(shorten("/tmp/simulated.h"), "simulated.h");
    }
}
