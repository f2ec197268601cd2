//! Reads and writes the safetensors files of a model folder.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata, TensorInfo, View};
use tch::{Kind, Tensor};

use super::ModelError;
use super::json::Object;
use super::weights::bytes;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Hands every tensor of the folder's weights files to `each`, with its file and name, in the type of the file.
///
/// One tensor is in memory at a time.
pub(crate) fn read(
    folder: &Path,
    each: &mut dyn FnMut(&Path, &str, Tensor) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    for path in files(folder)? {
        read_file(&path, each)?;
    }
    Ok(())
}

/// Writes `tensors` as one float32 file that transformers reads.
pub(crate) fn write(folder: &Path, tensors: &[(String, Tensor)]) -> Result<(), ModelError> {
    let path = folder.join(SINGLE);
    let views: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| Ok((name, Values::of(tensor)?)))
        .collect::<Result<_, ModelError>>()?;
    // transformers refuses a file that does not name its framework.
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    safetensors::serialize_to_file(views, Some(metadata), &path)
        .map_err(|error| ModelError::write(&path)(std::io::Error::other(error)))
}

/// The weights files: those that the index names, or the single one.
fn files(folder: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let index = folder.join(INDEX);
    if folder.join(SINGLE).exists() || !index.exists() {
        return Ok(vec![folder.join(SINGLE)]);
    }
    let index = Object::read(&index)?;
    let map = index
        .get("weight_map")
        .and_then(|map| map.as_object())
        .ok_or_else(|| index.wrong("weight_map", "an object"))?;
    let names: Option<BTreeSet<&str>> = map.values().map(|file| file.as_str()).collect();
    let names = names.ok_or_else(|| index.wrong("weight_map", "file names"))?;
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

fn read_file(
    path: &Path,
    each: &mut dyn FnMut(&Path, &str, Tensor) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    let mut file = File::open(path).map_err(ModelError::read(path))?;
    let (metadata, start) = header(path, &mut file)?;
    for name in metadata.offset_keys() {
        let info =
            metadata.info(&name).expect("invariant: the metadata knows the names that it lists");
        let tensor = read_tensor(path, &name, &mut file, start, info)?;
        each(path, &name, tensor)?;
    }
    Ok(())
}

/// The header of a file, and where the values begin.
fn header(path: &Path, file: &mut File) -> Result<(Metadata, u64), ModelError> {
    let damaged = |reason: String| ModelError::Safetensors { path: path.to_owned(), reason };
    let size = file.metadata().map_err(ModelError::read(path))?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(|_| damaged(format!("{size} bytes hold no header")))?;
    let length = u64::from_le_bytes(length);
    if length > size.saturating_sub(8) {
        return Err(damaged(format!("a header of {length} bytes in a file of {size}")));
    }
    let mut text = vec![0; length as usize];
    file.read_exact(&mut text).map_err(ModelError::read(path))?;
    let metadata: Metadata =
        serde_json::from_slice(&text).map_err(|error| damaged(format!("header: {error}")))?;
    let expected = 8 + length + metadata.data_len() as u64;
    if expected != size {
        return Err(damaged(format!("expected {expected} bytes, found {size}")));
    }
    Ok((metadata, 8 + length))
}

fn read_tensor(
    path: &Path,
    name: &str,
    file: &mut File,
    start: u64,
    info: &TensorInfo,
) -> Result<Tensor, ModelError> {
    let kind = match info.dtype {
        Dtype::F32 => Kind::Float,
        Dtype::F16 => Kind::Half,
        Dtype::BF16 => Kind::BFloat16,
        other => {
            return Err(ModelError::Dtype {
                path: path.to_owned(),
                tensor: name.to_owned(),
                found: format!("{other:?}"),
            });
        }
    };
    let (begin, end) = info.data_offsets;
    let mut values = vec![0; end - begin];
    file.seek(SeekFrom::Start(start + begin as u64)).map_err(ModelError::read(path))?;
    file.read_exact(&mut values).map_err(ModelError::read(path))?;
    let shape: Vec<i64> = info.shape.iter().map(|&size| size as i64).collect();
    Ok(Tensor::f_from_data_size(&values, &shape, kind)?)
}

/// A tensor's values, as the writer wants them.
struct Values {
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Values {
    fn of(tensor: &Tensor) -> Result<Self, ModelError> {
        Ok(Self {
            shape: tensor.size().iter().map(|&size| size as usize).collect(),
            bytes: bytes(tensor)?,
        })
    }
}

impl View for Values {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }
    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}
