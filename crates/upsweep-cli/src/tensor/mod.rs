//! Tensor files: untrusted bytes in, a checked [`Tensor`] or a typed error out.
//!
//! Nothing is allocated before the file's own length has shown that it can be filled, and no text reaches a recursive
//! parser before its nesting was counted.

mod npy;
mod safetensors;

pub use npy::{read_npy, write_npy};
pub use safetensors::{list_safetensors, read_safetensors};

use bytemuck::checked::CheckedBitPattern;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use upsweep::flow::{HostSlice, HostSliceMut};
use upsweep::types::{DType, Element, Layout, dispatch};

/// The most axes a file's tensor may have: NumPy's own limit.
pub const MAX_RANK: usize = 64;

/// What can be wrong with a tensor file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The file cannot be opened or read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Neither of the formats by its name.
    #[error("{path} has no known format: allowed are files that end in .npy or .safetensors", path = path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// The bytes break the format.
    #[error("malformed {format} file: {problem}")]
    Malformed {
        /// `npy` or `safetensors`.
        format: &'static str,
        /// What is wrong, with what came and what is allowed.
        problem: String,
    },
    /// The file ends early, or goes on after its last byte.
    #[error("{format} file has {got} bytes of data, but its header describes {expected}: it is {}", if got < expected { "truncated" } else { "longer than it says" })]
    Length {
        /// `npy` or `safetensors`.
        format: &'static str,
        /// Bytes that are there.
        got: u64,
        /// Bytes that the header describes.
        expected: u64,
    },
    /// A well-formed file of a dtype that is not in the table.
    #[error("dtype {got} is not supported: allowed are {allowed}{hint}")]
    UnsupportedDType {
        /// The file's own name of the dtype.
        got: String,
        /// The allowed ones.
        allowed: String,
        /// What to do, or nothing.
        hint: &'static str,
    },
    /// A shape that cannot be described.
    #[error("shape {shape}: {problem}")]
    Shape {
        /// The shape.
        shape: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A name given twice in one file.
    #[error("tensor `{name}` is defined twice in the file; which one is meant cannot be known")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// No tensor of that name, or none named although there are several.
    #[error("{problem}; `--tensor` takes one of: {names}")]
    Name {
        /// What is wrong.
        problem: String,
        /// The names that are there.
        names: String,
    },
    /// A bool that is neither 0 nor 1.
    #[error("element {position} of a bool tensor is {got}; allowed are 0 and 1")]
    InvalidBool {
        /// Its position in the file.
        position: u64,
        /// What came.
        got: u8,
    },
    /// The tensor does not fit the memory.
    #[error("{bytes} bytes of tensor data do not fit the memory that is free; reduce a smaller part of the tensor")]
    OutOfMemory {
        /// What was asked for.
        bytes: u64,
    },
}

/// The result of reading a tensor file.
pub type Result<T, E = TensorError> = std::result::Result<T, E>;

/// A tensor in host memory, with the layout its file has.
#[derive(Debug)]
pub struct Tensor {
    dtype: DType,
    layout: Layout,
    // 64-bit words, so that every element type is aligned.
    words: Vec<u64>,
    len: usize,
}

impl Tensor {
    /// A zeroed tensor in C order.
    ///
    /// # Errors
    /// [`TensorError::Shape`], [`TensorError::OutOfMemory`].
    pub fn zeroed(dtype: DType, shape: &[u64]) -> Result<Tensor> {
        let layout = layout(shape, false)?;
        let (words, len) = allocate(dtype, layout.len())?;
        Ok(Tensor { dtype, layout, words, len })
    }

    /// Fills a tensor from the next bytes of a file. The caller has checked that the file is long enough.
    fn read(reader: &mut dyn Read, dtype: DType, layout: Layout, format: &'static str) -> Result<Tensor> {
        let (words, len) = allocate(dtype, layout.len())?;
        let mut tensor = Tensor { dtype, layout, words, len };
        let expected = tensor.bytes().len() as u64;
        reader.read_exact(tensor.bytes_mut()).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => TensorError::Length { format, got: 0, expected },
            _ => TensorError::Malformed { format, problem: error.to_string() },
        })?;
        if dtype == DType::Bool
            && let Some(position) = tensor.bytes().iter().position(|b| *b > 1)
        {
            return Err(TensorError::InvalidBool { position: position as u64, got: tensor.bytes()[position] });
        }
        Ok(tensor)
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Where the elements lie.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, in file order.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len * self.dtype.size() as usize]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.len * self.dtype.size() as usize]
    }

    /// The elements, if `T` is their type.
    pub fn elements<T: Element + CheckedBitPattern>(&self) -> Option<&[T]> {
        if T::DTYPE != self.dtype {
            return None;
        }
        bytemuck::checked::try_cast_slice(self.bytes()).ok()
    }

    /// The elements in the erased form that operations take.
    pub fn host_slice(&self) -> HostSlice<'_> {
        // The dtype is the tensor's own and bools were checked when read, so the fallback is never taken.
        dispatch!(self.dtype, T => HostSlice::from(self.elements::<T>().unwrap_or(&[])))
    }

    /// The elements in the erased form that operations write.
    pub fn host_slice_mut(&mut self) -> HostSliceMut<'_> {
        dispatch!(self.dtype, T => {
            HostSliceMut::from(bytemuck::checked::try_cast_slice_mut::<u8, T>(self.bytes_mut()).unwrap_or(&mut []))
        })
    }

    /// One element, with as many digits as bring back the same value.
    pub fn display(&self, position: usize) -> String {
        dispatch!(self.dtype, T => self.elements::<T>().and_then(|e| e.get(position)).map_or_else(String::new, |x| format!("{x:?}")))
    }
}

fn allocate(dtype: DType, elements: u64) -> Result<(Vec<u64>, usize)> {
    let bytes = elements.checked_mul(dtype.size()).ok_or(TensorError::OutOfMemory { bytes: u64::MAX })?;
    let refused = |_| TensorError::OutOfMemory { bytes };
    let (words, len) = (usize::try_from(bytes.div_ceil(8)), usize::try_from(elements));
    let (Ok(words), Ok(len)) = (words, len) else {
        return Err(TensorError::OutOfMemory { bytes });
    };
    // Systems that promise more memory than they have end a process that uses it, so a promise is not enough.
    if bytes > ALWAYS_TRIED && memory_available().is_some_and(|available| bytes > available) {
        return Err(TensorError::OutOfMemory { bytes });
    }
    let mut memory = Vec::new();
    memory.try_reserve_exact(words).map_err(refused)?;
    memory.resize(words, 0);
    Ok((memory, len))
}

/// Allocations up to this many bytes are not worth a look at the system's memory.
const ALWAYS_TRIED: u64 = 64 << 20;

/// Bytes that can be used without swapping, where the system tells.
fn memory_available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kibibytes| kibibytes << 10)
}

/// The layout of a dense file: C order or Fortran order (first axis contiguous).
fn layout(shape: &[u64], fortran: bool) -> Result<Layout> {
    let wrong = |problem: String| TensorError::Shape { shape: shorten(shape), problem };
    if shape.len() > MAX_RANK {
        return Err(wrong(format!("it has {} axes, but at most {MAX_RANK} are allowed", shape.len())));
    }
    let refused = |error: upsweep::Error| wrong(error.to_string());
    if !fortran {
        return Layout::contiguous(shape).map_err(refused);
    }
    let mut strides = Vec::with_capacity(shape.len());
    let mut step = 1i64;
    for &extent in shape {
        strides.push(step);
        step = i64::try_from(extent.max(1))
            .ok()
            .and_then(|e| step.checked_mul(e))
            .ok_or_else(|| wrong("the number of elements does not fit 63 bits".into()))?;
    }
    Layout::strided(shape, &strides, 0).map_err(refused)
}

fn shorten(shape: &[u64]) -> String {
    if shape.len() <= 8 { format!("{shape:?}") } else { format!("{:?} and {} more", &shape[..8], shape.len() - 8) }
}

/// Reads a tensor file, its format by its name.
///
/// # Errors
/// [`TensorError`].
pub fn read_file(path: &Path, tensor: Option<&str>) -> Result<Tensor> {
    let at = |source: io::Error| TensorError::Io { path: path.to_path_buf(), source };
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    if !matches!(extension.as_str(), "npy" | "safetensors") {
        return Err(TensorError::UnknownFormat { path: path.to_path_buf() });
    }
    let file = std::fs::File::open(path).map_err(at)?;
    if !file.metadata().map_err(at)?.is_file() {
        return Err(at(io::Error::other("it is not a regular file")));
    }
    // Seeking tells the length of what is read, whatever the directory entry says.
    let mut reader = io::BufReader::new(file);
    match extension.as_str() {
        "npy" => match tensor {
            Some(name) => Err(TensorError::Name {
                problem: format!("tensor `{name}` was asked for, but a .npy file holds one tensor without a name"),
                names: "nothing (leave it out)".into(),
            }),
            None => read_npy(&mut reader),
        },
        _ => read_safetensors(&mut reader, tensor),
    }
}

/// Length of a seekable source, which is left at its start.
fn length_of(reader: &mut (impl Read + Seek), format: &'static str) -> Result<u64> {
    let length = reader.seek(io::SeekFrom::End(0)).and_then(|end| reader.rewind().map(|()| end));
    length.map_err(|error| TensorError::Malformed { format, problem: error.to_string() })
}
