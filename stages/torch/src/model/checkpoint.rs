//! Reads and writes the safetensors files of a model folder.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rollpacker_files::NewFile;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use tch::{Kind, Tensor};

use super::json::Object;
use super::stored::StoredTensor;
use super::tensor_file::{header, write_tensors};
use super::{ModelConfig, ModelError, TorchError, layout};

const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";

/// Maximum number of values in a piece, which is the part of a tensor that is read at once. A piece in the widest type and its copy as a
/// tensor fit into the cache of a core.
pub(super) const PIECE_VALUES: usize = 1 << 16;

/// The weights files of a folder, open and checked against the model's configuration. Values are read on demand.
///
/// Reads are positioned, so that threads can share the checkpoint. The files are not mapped. Pages of a mapped file are memory of the
/// process that no memory budget counts. Access to the mapping of a truncated file kills the process, whereas a positioned read returns an
/// error.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    folder: PathBuf,
    shards: Vec<Shard>,
    entries: HashMap<String, TensorEntry>,
}

/// A weights file of the folder, open for reading.
#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: File,
    /// Offset of the values in the file, in bytes.
    start: u64,
}

/// Location and type of the values of a tensor, which are row-major.
#[derive(Debug)]
struct TensorEntry {
    /// The index of the shard in [`Checkpoint`].
    shard: usize,
    /// Offset from the start of the shard's values, in bytes.
    offset: u64,
    values: usize,
    kind: Kind,
}

/// A buffer into which pieces of tensors are read.
#[derive(Debug)]
pub(crate) struct Scratch(Vec<u8>);

impl Scratch {
    /// Bytes that a reader needs: the buffer itself, and the piece as a tensor.
    pub(crate) const BYTES: u64 = 2 * (PIECE_VALUES * size_of::<f32>()) as u64;
}

impl Default for Scratch {
    fn default() -> Self {
        Self(vec![0; PIECE_VALUES * size_of::<f32>()])
    }
}

impl Checkpoint {
    /// Opens the weights files of a folder and reads their headers.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or a tensor is missing, occurs in two files, has a wrong shape or type, or does not
    /// belong to this model.
    pub(crate) fn open(folder: &Path, config: &ModelConfig) -> Result<Self, TorchError> {
        let mut missing: BTreeMap<_, _> = layout::parameters(config).into_iter().collect();
        let mut extra = Vec::new();
        let (mut shards, mut entries) = (Vec::new(), HashMap::new());
        for path in files(folder)? {
            let (file, metadata) = Shard::open(path)?;
            for name in metadata.offset_keys() {
                let info = metadata
                    .info(&name)
                    .expect("invariant: the metadata describes the tensors that it lists");
                match missing.remove(&name) {
                    Some(shape) => {
                        let entry =
                            TensorEntry::new(&file.path, shards.len(), &name, info, &shape)?;
                        entries.insert(name, entry);
                    }
                    None if layout::is_redundant(config, &name) => {}
                    None => extra.push(name),
                }
            }
            shards.push(file);
        }
        layout::refuse_unexpected(
            &folder.display().to_string(),
            missing.into_keys().collect(),
            extra,
        )?;
        Ok(Self { folder: folder.to_owned(), shards, entries })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Copies the values of tensor `name` into `parameter` as float32. `parameter` must be contiguous and have the same number of values.
    pub(crate) fn read_into(
        &self,
        name: &str,
        parameter: &Tensor,
        scratch: &mut Scratch,
    ) -> Result<(), TorchError> {
        let flat = parameter.f_view([-1])?;
        self.read(name, scratch, &mut |first, values| {
            flat.f_narrow(0, first as i64, values.size1()?)?.f_copy_(values)?;
            Ok(())
        })
    }

    /// Reads the values of tensor `name` piece by piece, in the type of the file.
    ///
    /// Calls `each(first, values)` for each piece, where `values` has shape `[n]` and `first` is the index of its first value. One piece is
    /// in memory at a time.
    pub(crate) fn read(
        &self,
        name: &str,
        scratch: &mut Scratch,
        each: &mut dyn FnMut(usize, &Tensor) -> Result<(), TorchError>,
    ) -> Result<(), TorchError> {
        let entry = self.entries.get(name).ok_or_else(|| ModelError::MissingTensors {
            origin: self.folder.display().to_string(),
            names: vec![name.to_owned()],
        })?;
        let shard = &self.shards[entry.shard];
        let begin = shard.start + entry.offset;
        let width = entry.kind.elt_size_in_bytes();
        for first in (0..entry.values).step_by(PIECE_VALUES) {
            let count = PIECE_VALUES.min(entry.values - first);
            let bytes = &mut scratch.0[..count * width];
            shard
                .file
                .read_exact_at(bytes, begin + (first * width) as u64)
                .map_err(|error| ModelError::Read { path: shard.path.clone(), error })?;
            each(first, &Tensor::f_from_data_size(bytes, &[count as i64], entry.kind)?)?;
        }
        Ok(())
    }
}

impl Shard {
    /// Opens a file and reads its header.
    fn open(path: PathBuf) -> Result<(Self, Metadata), TorchError> {
        let mut file = rollpacker_files::open(&path).map_err(ModelError::read(&path))?;
        let (metadata, start) = header(&path, &mut file)?;
        Ok((Self { path, file, start }, metadata))
    }
}

impl TensorEntry {
    fn new(
        path: &Path,
        shard: usize,
        name: &str,
        info: &TensorInfo,
        expected: &[i64],
    ) -> Result<Self, TorchError> {
        let shape: Vec<i64> = info.shape.iter().map(|&size| size as i64).collect();
        layout::check_shape(&path.display().to_string(), name, expected, &shape)?;
        Ok(Self {
            shard,
            offset: info.data_offsets.0 as u64,
            values: info.shape.iter().product(),
            kind: kind(path, name, info.dtype)?,
        })
    }
}

/// Writes `tensors` to `model.safetensors` in `folder`, in a format that transformers can load. Tensors keep their type, which must be
/// float32 or float64. An existing file is replaced only after all tensors are written.
pub(crate) fn write(folder: &Path, tensors: &[(String, Tensor)]) -> Result<(), TorchError> {
    let path = folder.join(SINGLE_FILE);
    let stored =
        |(name, tensor): &(String, Tensor)| (name.clone(), StoredTensor(tensor.shallow_clone()));
    let stored: Vec<_> = tensors.iter().map(stored).collect();
    let file = NewFile::create(&path)?;
    write_tensors(file.temporary_path(), &stored).map_err(ModelError::write(&path))?;
    Ok(file.finish()?)
}

/// Returns the paths of the weights files: `model.safetensors` if it exists or the folder has no index `model.safetensors.index.json`,
/// otherwise the files that the index names.
fn files(folder: &Path) -> Result<Vec<PathBuf>, TorchError> {
    let index = folder.join(INDEX_FILE);
    if folder.join(SINGLE_FILE).exists() || !index.exists() {
        return Ok(vec![folder.join(SINGLE_FILE)]);
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

fn kind(path: &Path, name: &str, dtype: Dtype) -> Result<Kind, ModelError> {
    match dtype {
        Dtype::F32 => Ok(Kind::Float),
        Dtype::F16 => Ok(Kind::Half),
        Dtype::BF16 => Ok(Kind::BFloat16),
        other => Err(ModelError::Dtype {
            path: path.to_owned(),
            tensor: name.to_owned(),
            expected: "F32, F16 or BF16".to_owned(),
            found: format!("{other:?}"),
        }),
    }
}
