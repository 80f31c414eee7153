//! `.safetensors`. Only the header and the one tensor that is asked for are read.

use super::{Result, Tensor, TensorError, layout, length_of};
use safetensors::tensor::Metadata;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use std::collections::BTreeSet;
use std::fmt;
use std::io::{Read, Seek, SeekFrom};
use upsweep::types::DType;

const FORMAT: &str = "safetensors";
/// The format's own limit, in bytes.
const MAX_HEADER: u64 = 100_000_000;

fn malformed(problem: impl Into<String>) -> TensorError {
    TensorError::Malformed { format: FORMAT, problem: problem.into() }
}

/// Reads one tensor: the named one, or the only one.
///
/// # Errors
/// [`TensorError`]; nothing in the bytes leads to a panic, an abort or an allocation beyond the file's own length.
pub fn read_safetensors(reader: &mut (impl Read + Seek), tensor: Option<&str>) -> Result<Tensor> {
    let (metadata, data_start) = read_header(reader)?;
    let names = metadata.offset_keys();
    let listed = |problem: String| TensorError::Name { problem, names: list(&names) };
    let name = match (tensor, names.as_slice()) {
        (Some(name), _) => name,
        (None, [only]) => only,
        (None, []) => return Err(listed("the file holds no tensor".into())),
        (None, _) => return Err(listed(format!("the file holds {} tensors and none was named", names.len()))),
    };
    let info = metadata.info(name).ok_or_else(|| listed(format!("the file holds no tensor `{name}`")))?;
    let code = format!("{:?}", info.dtype);
    let dtype = DType::TABLE.iter().find(|row| row.safetensors == code).map(|row| row.dtype);
    let dtype = dtype.ok_or_else(|| TensorError::UnsupportedDType {
        got: code,
        allowed: DType::TABLE.iter().map(|row| row.safetensors).collect::<Vec<_>>().join(", "),
        hint: "",
    })?;
    let shape: Vec<u64> = info.shape.iter().map(|&extent| extent as u64).collect();
    let layout = layout(&shape, false)?;
    let start = data_start + info.data_offsets.0 as u64;
    reader.seek(SeekFrom::Start(start)).map_err(|e| malformed(e.to_string()))?;
    Tensor::read(reader, dtype, layout, FORMAT)
}

/// Names, dtypes and shapes of the tensors of a file, in file order.
///
/// # Errors
/// [`TensorError`].
pub fn list_safetensors(reader: &mut (impl Read + Seek)) -> Result<Vec<(String, String, Vec<u64>)>> {
    let (metadata, _) = read_header(reader)?;
    let describe = |name: String| {
        let info = metadata.info(&name)?;
        Some((format!("{:?}", info.dtype), info.shape.iter().map(|&e| e as u64).collect()))
            .map(|(dtype, shape)| (name, dtype, shape))
    };
    Ok(metadata.offset_keys().into_iter().filter_map(describe).collect())
}

/// The validated header, and where the data starts.
fn read_header(reader: &mut (impl Read + Seek)) -> Result<(Metadata, u64)> {
    let length = length_of(reader, FORMAT)?;
    let mut word = [0u8; 8];
    if length < 8 {
        return Err(malformed(format!("it has {length} bytes, but the length of its header alone takes 8")));
    }
    reader.read_exact(&mut word).map_err(|e| malformed(e.to_string()))?;
    let header_length = u64::from_le_bytes(word);
    if header_length > MAX_HEADER {
        return Err(malformed(format!("its header says it has {header_length} bytes, but at most {MAX_HEADER} are allowed")));
    }
    let data_start = 8 + header_length;
    if data_start > length {
        return Err(TensorError::Length { format: FORMAT, got: length, expected: data_start });
    }
    let mut header = vec![0u8; header_length as usize];
    reader.read_exact(&mut header).map_err(|e| malformed(e.to_string()))?;
    let text = std::str::from_utf8(&header).map_err(|e| malformed(format!("its header is not UTF-8: {e}")))?;
    check_names(text)?;
    // Offsets, order, gaps and shapes are checked by the format's own library when it builds the metadata.
    let metadata: Metadata = serde_json::from_str(text).map_err(|e| malformed(format!("its header is not valid: {e}")))?;
    let (got, expected) = (length - data_start, metadata.data_len() as u64);
    if got != expected {
        return Err(TensorError::Length { format: FORMAT, got, expected });
    }
    Ok((metadata, data_start))
}

/// Finds a name that is given twice, which the format's library would resolve silently to the last one.
fn check_names(header: &str) -> Result<()> {
    struct Names;
    impl<'de> Visitor<'de> for Names {
        type Value = Option<String>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map from tensor names to tensors")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<String>, A::Error> {
            let mut seen = BTreeSet::new();
            let mut twice = None;
            while let Some(name) = map.next_key::<String>()? {
                map.next_value::<IgnoredAny>()?;
                if !seen.insert(name.clone()) {
                    twice.get_or_insert(name);
                }
            }
            Ok(twice)
        }
    }
    let mut json = serde_json::Deserializer::from_str(header);
    let twice = json.deserialize_map(Names).map_err(|e| malformed(format!("its header is not valid: {e}")))?;
    twice.map_or(Ok(()), |name| Err(TensorError::DuplicateName { name }))
}

/// Names for an error message: all of a small file, the first of a large one.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 200;
    let mut text = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text += &format!(" and {} more", names.len() - SHOWN);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    fn read(bytes: &[u8], name: Option<&str>) -> Result<Tensor> {
        read_safetensors(&mut Cursor::new(bytes), name)
    }

    const TWO: &str = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[1,1],"data_offsets":[8,10]}}"#;

    #[test]
    fn tensors_are_found_by_name() {
        let data = [1.0f32.to_le_bytes(), 2.0f32.to_le_bytes()].concat();
        let bytes = file(TWO, &[data.as_slice(), &half::bf16::from_f32(3.0).to_le_bytes()].concat());
        assert_eq!(read(&bytes, Some("a")).unwrap().elements::<f32>().unwrap(), [1.0, 2.0]);
        assert_eq!(read(&bytes, Some("b")).unwrap().elements::<half::bf16>().unwrap(), [half::bf16::from_f32(3.0)]);
        for name in [None, Some("c")] {
            let error = read(&bytes, name).unwrap_err().to_string();
            assert!(error.contains("--tensor") && error.contains("a, b"), "{error}");
        }
        let listed = list_safetensors(&mut Cursor::new(&bytes)).unwrap();
        assert_eq!(listed[1], ("b".into(), "BF16".into(), vec![1, 1]));
    }

    #[test]
    fn malformed_files_are_typed_errors() {
        let error = |bytes: &[u8]| read(bytes, None).expect_err("it is malformed");
        let one = |dtype: &str, shape: &str, offsets: &str| {
            format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        assert!(matches!(error(b"\0\0\0"), TensorError::Malformed { .. }));
        assert!(matches!(error(&u64::MAX.to_le_bytes()), TensorError::Malformed { .. }));
        assert!(matches!(error(&100u64.to_le_bytes()), TensorError::Length { got: 8, expected: 108, .. }));
        assert!(matches!(error(&file(&one("F32", "[2]", "[0,8]"), &[0; 7])), TensorError::Length { got: 7, expected: 8, .. }));
        assert!(matches!(error(&file(&one("F32", "[2]", "[0,8]"), &[0; 9])), TensorError::Length { .. }));
        for (shape, offsets) in [
            ("[2]", "[0,4]"),
            ("[2]", "[8,0]"),
            ("[2]", "[4,12]"),
            ("[-2]", "[0,8]"),
            ("[18446744073709551615,2]", "[0,8]"),
            ("[2]", "[0,99999999999999999999]"),
        ] {
            let e = error(&file(&one("F32", shape, offsets), &[0; 8]));
            assert!(matches!(e, TensorError::Malformed { .. }), "{shape} {offsets}: {e}");
        }
        assert!(matches!(error(&file(&one("F8_E4M3", "[2]", "[0,2]"), &[0; 2])), TensorError::UnsupportedDType { .. }));
        assert!(matches!(error(&file(&one("BOOL", "[2]", "[0,2]"), &[0, 7])), TensorError::InvalidBool { position: 1, got: 7 }));
        let twice =
            r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
        assert!(matches!(error(&file(twice, &[0])), TensorError::DuplicateName { .. }));
        let deep = "[".repeat(100_000);
        assert!(matches!(error(&file(&format!(r#"{{"a":{deep}"#), &[])), TensorError::Malformed { .. }));
        assert!(matches!(error(&file("{}", &[])), TensorError::Name { .. }));
    }
}
