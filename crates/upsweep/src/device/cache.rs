//! The on-disk cache of built kernels: source + options + target + compiler version -> artefact.
//!
//! Place: `UPSWEEP_CACHE_DIR`, else `XDG_CACHE_HOME/upsweep`, else `HOME/.cache/upsweep`; `UPSWEEP_CACHE=off` switches it
//! off. Entries are written to a temporary file and renamed, so concurrent processes see whole entries or none; an entry
//! whose checksum or key does not match is rebuilt, not trusted. A cache that cannot be written only costs time.

use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"UPSWEEP1";

/// A built kernel file for one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artefact {
    /// What the device loads: a cubin, or a shared library of the host.
    pub image: Vec<u8>,
    /// Name expressions and the symbols they became.
    pub symbols: Vec<(String, String)>,
    /// The compiler's log; with `--ptxas-options=-v` it tells registers and spills.
    pub log: String,
}

/// A folder of artefacts, or nothing when switched off.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// The cache that the environment names.
    pub fn from_environment() -> Cache {
        let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        if std::env::var_os("UPSWEEP_CACHE").is_some_and(|v| v == "off" || v == "0") {
            return Cache { folder: None };
        }
        let folder = variable("UPSWEEP_CACHE_DIR")
            .or_else(|| variable("XDG_CACHE_HOME").map(|d| d.join("upsweep")))
            .or_else(|| variable("HOME").map(|d| d.join(".cache/upsweep")));
        Cache { folder }
    }

    /// A cache in a folder of the caller's choice.
    pub fn at(folder: impl Into<PathBuf>) -> Cache {
        Cache { folder: Some(folder.into()) }
    }

    /// The folder; `None` when switched off.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The key of an artefact: a digest of everything it depends on.
    pub fn key(parts: &[&str]) -> String {
        let mut digest = Sha256::new();
        for part in parts {
            // Lengths keep ("ab", "c") and ("a", "bc") apart.
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part.as_bytes());
        }
        digest.finalize().iter().map(|b| format!("{b:02x}")).collect()
    }

    /// A stored artefact, if it is whole and belongs to the key.
    pub fn get(&self, key: &str) -> Option<Artefact> {
        let path = self.path(key)?;
        let bytes = std::fs::read(&path).ok()?;
        let artefact = decode(&bytes, key);
        if artefact.is_none() {
            tracing::warn!(path = %path.display(), "a cached kernel is damaged; it will be rebuilt");
        }
        artefact
    }

    /// Stores an artefact. Failure is not an error: the next run compiles again.
    pub fn put(&self, key: &str, artefact: &Artefact) {
        let Some(path) = self.path(key) else { return };
        if let Err(error) = write_whole(&path, &encode(artefact, key)) {
            tracing::warn!(path = %path.display(), %error, "a compiled kernel could not be cached");
        }
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(format!("{key}.kernel")))
    }
}

/// Writes a file so that others see all of it or nothing.
fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    static COUNTER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let unique = COUNTER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let temporary = folder.join(format!(".{}.{unique}.tmp", std::process::id()));
    let written = std::fs::File::create(&temporary)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

fn encode(artefact: &Artefact, key: &str) -> Vec<u8> {
    let mut payload = Vec::with_capacity(artefact.image.len() + 1024);
    let mut chunk = |bytes: &[u8]| {
        payload.extend((bytes.len() as u64).to_le_bytes());
        payload.extend(bytes);
    };
    chunk(key.as_bytes());
    chunk(&artefact.image);
    chunk(artefact.log.as_bytes());
    for (expression, symbol) in &artefact.symbols {
        chunk(expression.as_bytes());
        chunk(symbol.as_bytes());
    }
    let mut bytes = MAGIC.to_vec();
    bytes.extend(Sha256::digest(&payload));
    bytes.extend(payload);
    bytes
}

fn decode(bytes: &[u8], key: &str) -> Option<Artefact> {
    let (magic, rest) = bytes.split_at_checked(8)?;
    let (digest, mut payload) = rest.split_at_checked(32)?;
    if magic != MAGIC || Sha256::digest(payload).as_slice() != digest {
        return None;
    }
    let mut chunk = || -> Option<Vec<u8>> {
        let (length, rest) = payload.split_at_checked(8)?;
        let length = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
        let (chunk, rest) = rest.split_at_checked(length)?;
        payload = rest;
        Some(chunk.to_vec())
    };
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).ok();
    if text(chunk()?)? != key {
        return None;
    }
    let image = chunk()?;
    let log = text(chunk()?)?;
    let mut symbols = Vec::new();
    while let Some(expression) = chunk() {
        symbols.push((text(expression)?, text(chunk()?)?));
    }
    Some(Artefact { image, symbols, log })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artefact() -> Artefact {
        Artefact { image: (0..200).collect(), symbols: vec![("k<int>".into(), "_Z1kIiE".into())], log: "log".into() }
    }

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("upsweep-cache-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn round_trip_and_no_leftovers() {
        let folder = scratch("round");
        let cache = Cache::at(&folder);
        assert_eq!(cache.get("k"), None);
        cache.put("k", &artefact());
        assert_eq!(cache.get("k"), Some(artefact()));
        let names: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["k.kernel"]);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn every_damaged_byte_and_every_truncation_is_noticed() {
        let whole = encode(&artefact(), "k");
        for position in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[position] ^= 1;
            assert_eq!(decode(&damaged, "k"), None, "byte {position}");
            assert_eq!(decode(&whole[..position], "k"), None, "length {position}");
        }
        assert_eq!(decode(&whole, "another key"), None);
    }

    #[test]
    fn concurrent_writers_leave_a_whole_entry() {
        let folder = scratch("race");
        let cache = Cache::at(&folder);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        cache.put("k", &artefact());
                        assert_eq!(cache.get("k"), Some(artefact()));
                    }
                });
            }
        });
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_not_an_error() {
        let file = scratch("file");
        std::fs::write(&file, b"in the way").unwrap();
        let cache = Cache::at(file.join("below"));
        cache.put("k", &artefact());
        assert_eq!(cache.get("k"), None);
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn keys_keep_parts_apart() {
        assert_ne!(Cache::key(&["ab", "c"]), Cache::key(&["a", "bc"]));
        assert_eq!(Cache::key(&["a"]).len(), 64);
    }
}
