//! NumPy's `.npy`. The header is parsed by `ndarray-npy` (typed errors, also for NumPy's bool rules); the data is read
//! here, because f16 is not among that crate's elements.

use super::{Result, Tensor, TensorError, layout, length_of};
use ndarray_npy::npy::header::{Header, Layout as Order, ReadHeaderError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use upsweep::types::DType;

const FORMAT: &str = "npy";
/// NumPy itself refuses headers of more than 10000 characters, because parsing a longer one may exhaust the stack.
const MAX_HEADER: u64 = 10_000;
/// Brackets in brackets: the dictionary, a list of fields, a field, its shape. Real headers need four.
const MAX_NESTING: usize = 8;

fn malformed(problem: impl Into<String>) -> TensorError {
    TensorError::Malformed { format: FORMAT, problem: problem.into() }
}

/// Reads an `.npy` file: versions 1 to 3, C and Fortran order, little endian.
///
/// # Errors
/// [`TensorError`]; nothing in the bytes leads to a panic, an abort or an allocation beyond the file's own length.
pub fn read_npy(reader: &mut (impl Read + Seek)) -> Result<Tensor> {
    let length = length_of(reader, FORMAT)?;
    let header = read_header(reader, length)?;
    let dtype = dtype(&header.type_descriptor.to_string())?;
    let shape: Vec<u64> = header.shape.iter().map(|&extent| extent as u64).collect();
    let layout = layout(&shape, header.layout.is_fortran())?;
    let data = reader.stream_position().map_err(|e| malformed(e.to_string()))?;
    let (got, expected) = (length - data, layout.len() as u128 * dtype.size() as u128);
    if got as u128 != expected {
        return Err(TensorError::Length { format: FORMAT, got, expected: u64::try_from(expected).unwrap_or(u64::MAX) });
    }
    Tensor::read(reader, dtype, layout, FORMAT)
}

/// The header, after its length and nesting were found harmless to the parser.
fn read_header(reader: &mut (impl Read + Seek), length: u64) -> Result<Header> {
    let mut start = [0u8; 12];
    let have = (length as usize).min(start.len());
    reader.read_exact(&mut start[..have]).map_err(|e| malformed(e.to_string()))?;
    if have < 10 || &start[..6] != b"\x93NUMPY" {
        return Err(malformed("it does not start with \\x93NUMPY, a version and a header length"));
    }
    let (header_length, prefix) = match start[6] {
        1 => (u16::from_le_bytes([start[8], start[9]]) as u64, 10),
        _ => (u32::from_le_bytes([start[8], start[9], start[10], start[11]]) as u64, 12),
    };
    if header_length > MAX_HEADER {
        return Err(malformed(format!("its header says it has {header_length} bytes, but at most {MAX_HEADER} are allowed")));
    }
    if prefix + header_length > length {
        return Err(TensorError::Length { format: FORMAT, got: length, expected: prefix + header_length });
    }
    let mut bytes = vec![0u8; (prefix + header_length) as usize];
    let at_start = reader.seek(SeekFrom::Start(0)).and_then(|_| reader.read_exact(&mut bytes));
    at_start.map_err(|e| malformed(e.to_string()))?;
    if nesting(&bytes) > MAX_NESTING {
        return Err(malformed(format!("its header nests brackets more than {MAX_NESTING} deep")));
    }
    Header::from_reader(&mut bytes.as_slice()).map_err(|error| match error {
        ReadHeaderError::Io(error) => malformed(error.to_string()),
        ReadHeaderError::Parse(error) => malformed(error.to_string()),
    })
}

/// An upper bound of how deep brackets nest: brackets inside strings count too.
fn nesting(text: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    for byte in text {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// The dtype of a descriptor as a Python literal, for instance `'<f4'`.
fn dtype(descriptor: &str) -> Result<DType> {
    let code = descriptor.trim_matches('\'');
    let same = |row: &&upsweep::types::DTypeRow| {
        row.npy.is_some_and(|npy| {
            npy == code || row.size == 1 && code.get(1..) == Some(&npy[1..]) && code.starts_with(['<', '>', '='])
        })
    };
    if let Some(row) = DType::TABLE.iter().find(same) {
        return Ok(row.dtype);
    }
    let hint = match code.as_bytes() {
        [b'>', ..] => "; it is big endian: convert it with `a.astype(a.dtype.newbyteorder('<'))`",
        [b'|', b'O', ..] => "; object arrays hold Python objects, which are not numbers",
        [b'[', ..] => "; save one field of a structured array, for instance `a['name']`",
        _ => "",
    };
    let allowed = DType::TABLE.iter().filter_map(|row| row.npy).collect::<Vec<_>>().join(", ");
    let got: String = descriptor.chars().take(80).collect();
    Err(TensorError::UnsupportedDType { got, allowed, hint })
}

/// Writes a tensor as `.npy` (version 1, C order). NumPy has no bf16: such a tensor is written as f32, which holds
/// every bf16 value exactly.
///
/// # Errors
/// Those of the writer.
pub fn write_npy(writer: &mut impl Write, tensor: &Tensor) -> io::Result<()> {
    let dtype = if tensor.dtype().row().npy.is_some() { tensor.dtype() } else { DType::F32 };
    let code = dtype.row().npy.unwrap_or_default();
    let quoted = |e| io::Error::other(format!("cannot format the header: {e}"));
    let header = Header {
        type_descriptor: format!("'{code}'").parse().map_err(|_| io::Error::other("the dtype table holds no Python string"))?,
        layout: Order::Standard,
        shape: tensor.layout().shape().iter().map(|&extent| extent as usize).collect(),
    };
    writer.write_all(&header.to_bytes().map_err(quoted)?)?;
    if let Some(values) = tensor.elements::<half::bf16>() {
        for value in values {
            writer.write_all(&value.to_f32().to_le_bytes())?;
        }
        return Ok(());
    }
    writer.write_all(tensor.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let text = format!("{header}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.extend(data);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Tensor> {
        read_npy(&mut Cursor::new(bytes))
    }

    #[test]
    fn both_orders_are_read_by_strides() {
        let data: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let c = read(&file("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", &data)).unwrap();
        let f = read(&file("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", &data)).unwrap();
        let strides = |t: &Tensor| t.layout().dims().iter().map(|d| d.stride).collect::<Vec<_>>();
        assert_eq!((strides(&c), strides(&f)), (vec![3, 1], vec![1, 2]));
        assert_eq!(f.elements::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    }

    #[test]
    fn every_dtype_survives_a_round_trip() {
        for row in &DType::TABLE {
            let tensor = Tensor::zeroed(row.dtype, &[3, 5]).unwrap();
            let mut bytes = Vec::new();
            write_npy(&mut bytes, &tensor).unwrap();
            let back = read(&bytes).unwrap();
            assert_eq!(back.dtype(), if row.npy.is_some() { row.dtype } else { DType::F32 });
            assert_eq!(back.layout(), tensor.layout());
        }
    }

    #[test]
    fn malformed_files_are_typed_errors() {
        let header = |descr: &str, shape: &str| format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}");
        let error = |bytes: &[u8]| read(bytes).expect_err("it is malformed");
        assert!(matches!(error(b""), TensorError::Malformed { .. }));
        assert!(matches!(error(b"\x93NUMPY\x01\x00"), TensorError::Malformed { .. }));
        assert!(matches!(error(&file(&header("'<f4'", "(2,)"), &[0; 7])), TensorError::Length { got: 7, expected: 8, .. }));
        assert!(matches!(error(&file(&header("'<f4'", "(2,)"), &[0; 9])), TensorError::Length { got: 9, expected: 8, .. }));
        assert!(matches!(error(&file(&header("'<f4'", "(4294967296, 4294967296)"), &[])), TensorError::Shape { .. }));
        assert!(matches!(error(&file(&header("'<f4'", "(9223372036854775807,)"), &[])), TensorError::Length { .. }));
        assert!(matches!(error(&file(&header("'<f4'", "(-1,)"), &[])), TensorError::Malformed { .. }));
        assert!(matches!(error(&file(&header("'|b1'", "(2,)"), &[1, 2])), TensorError::InvalidBool { position: 1, got: 2 }));
        for (descr, word) in
            [("'>f4'", "big endian"), ("'|O'", "object"), ("[('a', '<f4')]", "field"), ("'<c8'", "<f4"), ("'<i2'", "<f4")]
        {
            let e = error(&file(&header(descr, "(0,)"), &[]));
            assert!(matches!(e, TensorError::UnsupportedDType { .. }) && e.to_string().contains(word), "{e}");
        }
        let ones = format!("({})", "1,".repeat(65));
        assert!(matches!(error(&file(&header("'<f4'", &ones), &[0; 4])), TensorError::Shape { .. }));
    }

    #[test]
    fn headers_that_would_exhaust_the_parser_or_the_memory_are_refused() {
        let deep = file(&"(".repeat(9000), &[]);
        assert!(read(&deep).unwrap_err().to_string().contains("nests"));
        let mut long = b"\x93NUMPY\x02\x00".to_vec();
        long.extend(u32::MAX.to_le_bytes());
        assert!(read(&long).unwrap_err().to_string().contains("4294967295"));
    }
}
