//! Sources of weights: a folder of safetensors, or a seed.
//!
//! Both are a `VarBuilder` of candle, so models do not depend on the source. A folder is mapped,
//! not read; a seed gives the same tensor for the same name on every machine, in any order.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use candle_core::{DType, Device, Result, Shape, Tensor};
use candle_nn::{Init, VarBuilder, var_builder::SimpleBackend};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

const INDEX: &str = "model.safetensors.index.json";
/// Values that one task synthesises.
const CHUNK: usize = 1 << 14;

/// A folder of weights that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("no *.safetensors in {0}")]
    Empty(PathBuf),
    #[error("invalid index of weights {path}: {reason}")]
    Index { path: PathBuf, reason: String },
    #[error("invalid or truncated safetensors file {path}: {reason}")]
    Open { path: PathBuf, reason: String },
    #[error("{name} in {path} is quantised ({dtype}); expected weights in f32, f16 or bf16")]
    Quantised { path: PathBuf, name: String, dtype: String },
}

/// Weights of `folder`: every file in its index, or every `*.safetensors` in it.
pub fn load(
    folder: &Path,
    dtype: DType,
    device: &Device,
) -> std::result::Result<VarBuilder<'static>, WeightsError> {
    let files = files(folder)?;
    for path in &files {
        check(path)?;
    }
    // SAFETY: the files are mapped and must not change while the model runs.
    unsafe { VarBuilder::from_mmaped_safetensors(&files, dtype, device) }
        .map_err(|error| WeightsError::Open { path: folder.to_owned(), reason: error.to_string() })
}

fn files(folder: &Path) -> std::result::Result<Vec<PathBuf>, WeightsError> {
    let read = |path: &Path, source| WeightsError::Read { path: path.to_owned(), source };
    let index = folder.join(INDEX);
    if index.is_file() {
        let text = fs::read_to_string(&index).map_err(|e| read(&index, e))?;
        return parse_index(&text)
            .map(|names| names.into_iter().map(|name| folder.join(name)).collect())
            .map_err(|reason| WeightsError::Index { path: index, reason });
    }
    let entries = fs::read_dir(folder).map_err(|e| read(folder, e))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| read(folder, e))?.path();
        if path.extension() == Some(OsStr::new("safetensors")) {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() { Err(WeightsError::Empty(folder.to_owned())) } else { Ok(files) }
}

/// The files in an index, each once. A name outside the folder is refused.
fn parse_index(text: &str) -> std::result::Result<BTreeSet<String>, String> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: std::collections::HashMap<String, String>,
    }
    let index: Index = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    match names.iter().find(|name| Path::new(name).file_name() != Some(OsStr::new(name))) {
        Some(name) => Err(format!("{name:?} is not a file name without a path")),
        None if names.is_empty() => Err("it lists no file".to_owned()),
        None => Ok(names),
    }
}

/// Checks a file's header against its length, so that a truncated file is reported.
fn check(path: &Path) -> std::result::Result<(), WeightsError> {
    let read = |source| WeightsError::Read { path: path.to_owned(), source };
    let file = fs::File::open(path).map_err(read)?;
    // SAFETY: mapped during this call, and only read.
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(read)?;
    let tensors = safetensors::SafeTensors::deserialize(&map)
        .map_err(|error| WeightsError::Open { path: path.to_owned(), reason: error.to_string() })?;
    let is_quantised = |dtype| {
        use safetensors::Dtype::{BF16, F16, F32, F64};
        !matches!(dtype, BF16 | F16 | F32 | F64)
    };
    let quantised =
        tensors.iter().find(|(name, it)| name.ends_with(".weight") && is_quantised(it.dtype()));
    match quantised {
        Some((name, it)) => Err(WeightsError::Quantised {
            path: path.to_owned(),
            name: name.to_owned(),
            dtype: format!("{:?}", it.dtype()),
        }),
        None => Ok(()),
    }
}

/// Weights drawn from `seed`, each tensor by its name and its layer's scale.
pub fn synthetic(seed: u64, dtype: DType, device: &Device) -> VarBuilder<'static> {
    VarBuilder::from_backend(Box::new(Synthetic { seed }), dtype, device.clone())
}

struct Synthetic {
    seed: u64,
}

impl SimpleBackend for Synthetic {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        init: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let (mean, stdev) = match init {
            Init::Const(value) => {
                return (Tensor::ones(shape, dtype, device)? * value)?.to_dtype(dtype);
            }
            Init::Randn { mean, stdev } => (mean as f32, stdev as f32),
            Init::Uniform { .. } | Init::Kaiming { .. } => {
                candle_core::bail!("{name}: only constant and normal weights are synthesised")
            }
        };
        let seed = tensor_seed(self.seed, name);
        #[cfg(feature = "cuda")]
        if let Device::Cuda(cuda) = device
            && let Some(tensor) =
                crate::gpu::synthesise(cuda, &shape, dtype, seed, mean, scale(stdev))?
        {
            return Ok(tensor);
        }
        let values = normals(seed, shape.elem_count(), mean, stdev);
        Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("{name}: a synthetic tensor needs a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

fn tensor_seed(seed: u64, name: &str) -> u64 {
    let digest = Sha256::new().chain_update(seed.to_le_bytes()).chain_update(name).finalize();
    u64::from_le_bytes(std::array::from_fn(|i| digest[i]))
}

/// Close to normal: the sum of four uniforms of 16 bits, scaled to the variance. Each value depends
/// only on the seed and its index, by splitmix64 (Steele, Lea and Flood 2014), so that a GPU
/// computes the same.
fn normals(seed: u64, count: usize, mean: f32, stdev: f32) -> Vec<f32> {
    let scale = scale(stdev);
    let value = |index: usize| {
        let z = seed.wrapping_add((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let word = z ^ (z >> 31);
        let sum = (word & 0xffff) + (word >> 16 & 0xffff) + (word >> 32 & 0xffff) + (word >> 48);
        // Twice 65535 is the sum's mean.
        mean + (sum as f32 - 131_070.0) * scale
    };
    // Few adaptors: tests synthesise weights in an unoptimised build, over and over.
    let mut values = vec![0.0; count];
    values.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, values)| {
        for (at, out) in values.iter_mut().enumerate() {
            *out = value(chunk * CHUNK + at);
        }
    });
    values
}

/// The factor of a sum of four uniforms: each on 0..65536 has variance 65536^2 / 12, four of them a
/// third of 65536^2.
fn scale(stdev: f32) -> f32 {
    stdev * 3f32.sqrt() / 65536.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_depends_only_on_its_name_and_the_seed() {
        let draw = |seed, name| normals(tensor_seed(seed, name), 40_000, 0.0, 1.0);
        assert_eq!(draw(1, "a"), draw(1, "a"));
        assert_ne!(draw(1, "a"), draw(1, "b"));
        assert_ne!(draw(1, "a"), draw(2, "a"));
        assert_eq!(
            draw(1, "a")[..100],
            normals(tensor_seed(1, "a"), 100, 0.0, 1.0),
            "a longer tensor starts the same"
        );
    }

    #[test]
    fn synthetic_values_have_the_requested_scale() {
        let values = normals(7, 1 << 20, 0.5, 0.02);
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>()
            / values.len() as f64;
        assert!((mean - 0.5).abs() < 1e-4, "mean {mean}");
        assert!((variance.sqrt() - 0.02).abs() < 1e-4, "standard deviation {}", variance.sqrt());
    }

    #[test]
    fn an_index_lists_files_of_its_own_folder_only() {
        let index = |file: &str| {
            parse_index(&format!(
                r#"{{"metadata": {{}}, "weight_map": {{"a": "{file}", "b": "{file}"}}}}"#
            ))
        };
        assert_eq!(index("part-1.safetensors").map(|names| names.len()), Ok(1));
        assert!(index("../part-1.safetensors").is_err());
        assert!(index("/part-1.safetensors").is_err());
        assert!(parse_index(r#"{"weight_map": {}}"#).is_err());
    }

    #[test]
    fn weights_from_a_folder_have_the_requested_dtype() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let saved = Tensor::new(&[[1f32, 2.0], [3.0, 4.0]], &Device::Cpu)?.to_dtype(DType::BF16)?;
        saved.save_safetensors("w", folder.path().join("x.safetensors"))?;
        let loaded = load(folder.path(), DType::F32, &Device::Cpu)?.get((2, 2), "w")?;
        assert_eq!(loaded.to_vec2::<f32>()?, [[1.0, 2.0], [3.0, 4.0]]);
        Ok(())
    }

    #[test]
    fn quantised_weights_are_refused_by_name() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("x.safetensors");
        Tensor::ones((2, 2), DType::U8, &Device::Cpu)?.save_safetensors("q.weight", &path)?;
        let refused = load(folder.path(), DType::F32, &Device::Cpu).err().expect("refused");
        assert!(refused.to_string().contains("is quantised (U8)"), "{refused}");
        Ok(())
    }

    #[test]
    fn a_truncated_file_is_named() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("x.safetensors");
        Tensor::ones((64, 64), DType::F32, &Device::Cpu)?.save_safetensors("w", &path)?;
        let file = fs::OpenOptions::new().write(true).open(&path)?;
        file.set_len(file.metadata()?.len() / 2)?;
        let refused =
            load(folder.path(), DType::F32, &Device::Cpu).err().expect("refused").to_string();
        assert!(refused.starts_with("invalid or truncated safetensors file"), "{refused}");
        assert!(refused.contains("x.safetensors"), "{refused}");
        Ok(())
    }
}
