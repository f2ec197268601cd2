//! A single safetensors file: its header, and its tensors by name.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde_json::{Map, json};

use super::ModelError;
use super::layout::{check_shape, refuse_unexpected};

/// The maximum size of the header of a safetensors file, in bytes, as in the reference implementation.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// A value that can be written as a tensor.
///
/// ```
/// use std::borrow::Cow;
/// use std::io;
///
/// use rollpacker_model::tensor_file::{Stored, TensorFile, write};
/// use safetensors::tensor::Dtype;
///
/// /// A vector of integers.
/// struct Integers(Vec<i64>);
///
/// impl Stored for Integers {
///     fn dtype(&self) -> io::Result<Dtype> {
///         Ok(Dtype::I64)
///     }
///
///     fn shape(&self) -> Vec<usize> {
///         vec![self.0.len()]
///     }
///
///     fn bytes(&self) -> io::Result<Cow<'_, [u8]>> {
///         Ok(self.0.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>().into())
///     }
/// }
///
/// let folder = tempfile::tempdir().expect("a folder");
/// let path = folder.path().join("steps.safetensors");
/// write(&path, &[("steps".to_owned(), Integers(vec![3, 5]))]).expect("written");
/// let bytes = TensorFile::open(&path).and_then(|file| file.read("steps", Dtype::I64, &[2]));
/// assert_eq!(bytes.expect("read"), [3, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
/// ```
pub trait Stored {
    /// Returns the type of the values.
    ///
    /// # Errors
    /// Returns an error if a file cannot have values of this type.
    fn dtype(&self) -> io::Result<Dtype>;

    /// Returns the dimensions, outermost first; empty for a single number.
    fn shape(&self) -> Vec<usize>;

    /// Returns the values, little-endian and row-major. Their length must match the type and the shape.
    ///
    /// # Errors
    /// Returns an error if the values cannot be read.
    fn bytes(&self) -> io::Result<Cow<'_, [u8]>>;
}

impl Stored for Box<dyn Stored> {
    fn dtype(&self) -> io::Result<Dtype> {
        self.as_ref().dtype()
    }

    fn shape(&self) -> Vec<usize> {
        self.as_ref().shape()
    }

    fn bytes(&self) -> io::Result<Cow<'_, [u8]>> {
        self.as_ref().bytes()
    }
}

/// Writes the named tensors to a safetensors file. The names must differ, which is not checked. At most one serialized tensor is in memory
/// at a time. An existing file is overwritten; after an error, the file may be incomplete.
///
/// # Errors
/// Returns an error if the type or the values of a tensor are not available, or the file cannot be written.
pub fn write<T: Stored>(path: &Path, tensors: &[(String, T)]) -> Result<(), ModelError> {
    write_tensors(path, tensors).map_err(ModelError::write(path))
}

/// Writes a file as [`write()`] does, but returns an [`io::Error`], which does not name the file.
///
/// # Errors
/// Returns an error if the type or the values of a tensor are not available, or the file cannot be written.
pub fn write_tensors<T: Stored>(path: &Path, tensors: &[(String, T)]) -> io::Result<()> {
    let header = header_of(tensors)?;
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    for (_, tensor) in tensors {
        file.write_all(&tensor.bytes()?)?;
    }
    file.flush()
}

/// Returns the header: names, types, shapes and offsets as JSON, padded to a multiple of 8 bytes so that the values after it are aligned.
/// The metadata names the framework, because transformers rejects files without this entry.
fn header_of<T: Stored>(tensors: &[(String, T)]) -> io::Result<Vec<u8>> {
    let mut begin = 0;
    let mut entries = Map::new();
    entries.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    for (name, tensor) in tensors {
        let (dtype, shape) = (tensor.dtype()?, tensor.shape());
        let end = begin + shape.iter().product::<usize>() * dtype.bitsize() / 8;
        let dtype = format!("{dtype:?}");
        let entry = json!({ "dtype": dtype, "shape": shape, "data_offsets": [begin, end] });
        entries.insert(name.clone(), entry);
        begin = end;
    }
    let mut text = serde_json::Value::Object(entries).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    Ok(text)
}

/// A safetensors file, opened for reading.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    /// Offset of the values in the file, in bytes.
    start: u64,
}

impl TensorFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or the header is damaged or does not match the size of the file.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let mut file = rollpacker_files::open(path).map_err(ModelError::read(path))?;
        let (metadata, start) = header(path, &mut file)?;
        Ok(Self { path: path.to_owned(), file, metadata, start })
    }

    /// Returns the values of the tensor `name`, little-endian and row-major.
    ///
    /// # Errors
    /// Returns an error if the tensor is missing, has another type or shape, or cannot be read.
    pub fn read(&self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<Vec<u8>, ModelError> {
        let info = self.check(name, dtype, shape)?;
        let (begin, end) = info.data_offsets;
        let mut bytes = vec![0; end - begin];
        self.file
            .read_exact_at(&mut bytes, self.start + begin as u64)
            .map_err(ModelError::read(&self.path))?;
        Ok(bytes)
    }

    /// Returns the names of the tensors, in ascending order.
    pub fn names(&self) -> BTreeSet<String> {
        self.metadata.offset_keys().into_iter().collect()
    }

    /// Checks that the file has exactly the tensors `expected`.
    ///
    /// # Errors
    /// Returns an error if one of these tensors is missing, or the file has any other tensor.
    pub fn check_names(&self, expected: &BTreeSet<String>) -> Result<(), ModelError> {
        let found = self.names();
        let origin = self.path.display().to_string();
        let without = |all: &BTreeSet<String>, some| all.difference(some).cloned().collect();
        refuse_unexpected(&origin, without(expected, &found), without(&found, expected))
    }

    /// Returns the header entry of the tensor `name`.
    ///
    /// # Errors
    /// Returns an error if the tensor is missing or has another type or shape.
    pub fn check(
        &self,
        name: &str,
        dtype: Dtype,
        shape: &[usize],
    ) -> Result<&TensorInfo, ModelError> {
        let origin = || self.path.display().to_string();
        let info = self.metadata.info(name).ok_or_else(|| ModelError::MissingTensors {
            origin: origin(),
            names: vec![name.to_owned()],
        })?;
        if info.dtype != dtype {
            return Err(ModelError::Dtype {
                path: self.path.clone(),
                tensor: name.to_owned(),
                expected: format!("{dtype:?}"),
                found: format!("{:?}", info.dtype),
            });
        }
        let sizes = |shape: &[usize]| shape.iter().map(|&size| size as i64).collect::<Vec<_>>();
        check_shape(&origin(), name, &sizes(shape), &sizes(&info.shape))?;
        Ok(info)
    }
}

/// Reads the header of a safetensors file. `file` must be at its beginning; `path` names it in errors. Returns the header and the offset of
/// the values in the file, in bytes.
///
/// # Errors
/// Returns an error if the file cannot be read, or the header is damaged or does not match the size of the file.
pub fn header(path: &Path, file: &mut File) -> Result<(Metadata, u64), ModelError> {
    let damaged = |reason: String| ModelError::Safetensors { path: path.to_owned(), reason };
    let size = file.metadata().map_err(ModelError::read(path))?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length)
        .map_err(|_| damaged(format!("{size} bytes are too few for a header")))?;
    let length = u64::from_le_bytes(length);
    if length > size.saturating_sub(8) {
        return Err(damaged(format!(
            "the header length {length} exceeds the file size of {size} bytes"
        )));
    }
    if length > MAX_HEADER_BYTES {
        return Err(damaged(format!(
            "expected a header of at most {MAX_HEADER_BYTES} bytes, found {length}"
        )));
    }
    let mut text = vec![0; length as usize];
    file.read_exact(&mut text).map_err(ModelError::read(path))?;
    let metadata: Metadata =
        serde_json::from_slice(&text).map_err(|error| damaged(format!("header: {error}")))?;
    // A damaged header may state any length of the values.
    let expected = (metadata.data_len() as u64).saturating_add(8 + length);
    if expected != size {
        return Err(damaged(format!("expected {expected} bytes, found {size}")));
    }
    Ok((metadata, 8 + length))
}

/// A number, stored as a tensor without dimensions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// A whole number, stored as `I64`.
    Integer(i64),
    /// A floating-point number, stored as `F64`.
    Float(f64),
}

impl Stored for Scalar {
    fn dtype(&self) -> io::Result<Dtype> {
        Ok(match self {
            Self::Integer(_) => Dtype::I64,
            Self::Float(_) => Dtype::F64,
        })
    }

    fn shape(&self) -> Vec<usize> {
        Vec::new()
    }

    fn bytes(&self) -> io::Result<Cow<'_, [u8]>> {
        Ok(Cow::Owned(match self {
            Self::Integer(number) => number.to_le_bytes().to_vec(),
            Self::Float(number) => number.to_le_bytes().to_vec(),
        }))
    }
}

impl TensorFile {
    /// Returns a number that was written as [`Scalar::Integer`].
    ///
    /// # Errors
    /// Returns an error if the tensor is missing, has another type or shape, or cannot be read.
    pub fn integer(&self, name: &str) -> Result<i64, ModelError> {
        self.word(name, Dtype::I64).map(i64::from_le_bytes)
    }

    /// Returns a number that was written as [`Scalar::Float`].
    ///
    /// # Errors
    /// Returns an error if the tensor is missing, has another type or shape, or cannot be read.
    pub fn float(&self, name: &str) -> Result<f64, ModelError> {
        self.word(name, Dtype::F64).map(f64::from_le_bytes)
    }

    fn word(&self, name: &str, dtype: Dtype) -> Result<[u8; 8], ModelError> {
        let bytes = self.read(name, dtype, &[])?;
        Ok(bytes.try_into().expect("invariant: a number of either type has 8 bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("numbers.safetensors");
        let numbers = [
            ("seven".to_owned(), Scalar::Integer(-7)),
            ("a third".to_owned(), Scalar::Float(1.0 / 3.0)),
        ];
        write(&path, &numbers).unwrap();
        (folder, path)
    }

    #[test]
    fn tensors_round_trip_bit_for_bit() {
        let (_folder, path) = written();
        let file = TensorFile::open(&path).unwrap();
        assert_eq!(file.integer("seven").unwrap(), -7);
        assert_eq!(file.float("a third").unwrap().to_bits(), (1.0f64 / 3.0).to_bits());
        let bytes = std::fs::read(&path).unwrap();
        let other = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(other.tensor("seven").unwrap().data(), (-7i64).to_le_bytes());
        let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
    }

    #[test]
    fn missing_and_unknown_tensors_are_named() {
        let (_folder, path) = written();
        let file = TensorFile::open(&path).unwrap();
        let check = |result: Result<(), ModelError>, expect: &str| {
            let message = result.unwrap_err().to_string();
            assert_eq!(message, format!("{}: {expect}", path.display()));
        };
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        check(file.integer("six").map(drop), "1 tensor(s) missing: `six`");
        check(file.float("seven").map(drop), "tensor `seven`: expected F64, found I64");
        check(
            file.read("seven", Dtype::I64, &[2]).map(drop),
            "tensor `seven`: expected shape [2], found []",
        );
        check(file.check_names(&names(&["a third"])), "1 tensor(s) not of this model: `seven`");
        check(file.check_names(&names(&["a third", "seven", "six"])), "1 tensor(s) missing: `six`");
    }

    #[test]
    fn a_write_error_names_the_file_and_the_cause() {
        let error = write(Path::new("/nowhere/state"), &[("n".to_owned(), Scalar::Integer(1))]);
        let message = error.unwrap_err().to_string();
        assert_eq!(message, "cannot write /nowhere/state: No such file or directory (os error 2)");
    }

    #[test]
    fn a_header_with_more_values_than_a_file_can_have_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("damaged.safetensors");
        let mut entries = Map::new();
        let mut begin = 0_u64;
        // The values of one tensor have fewer than 2^64 bits, those of eight tensors almost 2^64 bytes.
        for name in 0..8 {
            let end = begin + (u64::MAX >> 3);
            let shape = [u64::MAX >> 3];
            let entry = json!({ "dtype": "U8", "shape": shape, "data_offsets": [begin, end] });
            entries.insert(name.to_string(), entry);
            begin = end;
        }
        let header = serde_json::Value::Object(entries).to_string();
        let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
        std::fs::write(&path, bytes).unwrap();
        let message = TensorFile::open(&path).unwrap_err().to_string();
        assert!(message.contains("is not a safetensors file: expected "), "{message}");
    }

    #[test]
    fn a_truncated_file_is_refused() {
        let (_folder, path) = written();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let message = TensorFile::open(&path).unwrap_err().to_string();
        assert!(message.contains("is not a safetensors file: expected "), "{message}");
    }
}
