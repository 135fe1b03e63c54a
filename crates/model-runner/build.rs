//! Compiles the GPU kernels for the feature `cuda`.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

const KERNELS: &str = "src/kernels";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_CUDA").is_some() {
        compile_kernels();
    }
}

/// Compiles each `kernels/NAME.cu` to `OUT_DIR/NAME.fatbin`: machine code for one GPU generation,
/// and PTX for later ones.
fn compile_kernels() {
    println!("cargo::rerun-if-changed={KERNELS}");
    for variable in ["CUDA_HOME", "CUDA_COMPUTE_CAP", "PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let capability = capability();
    println!("cargo::rustc-env=LLMPROF_COMPUTE_CAP={capability}");
    let nvcc = env::var_os("CUDA_HOME")
        .map(|home| Path::new(&home).join("bin/nvcc"))
        .filter(|path| path.exists());
    let nvcc = nvcc.unwrap_or_else(|| "nvcc".into());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut sources: Vec<PathBuf> = std::fs::read_dir(KERNELS)
        .expect("the kernels are part of the sources")
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "cu"))
        .collect();
    sources.sort();
    // Products by groups of warps are instructions of sm_90a only.
    let exact = if capability == "90" { "90a" } else { &capability };
    let targets = [
        format!("-gencode=arch=compute_{exact},code=sm_{exact}"),
        format!("-gencode=arch=compute_{capability},code=compute_{capability}"),
    ];
    let running: Vec<_> = sources
        .iter()
        .map(|source| {
            let name = source.with_extension("fatbin");
            let fatbin = out.join(name.file_name().expect("a source has a name"));
            let mut nvcc = Command::new(&nvcc);
            nvcc.args(["-O3", "--use_fast_math", "-lineinfo", "-std=c++17", "-fatbin"]);
            nvcc.args(&targets).arg("-o").arg(&fatbin).arg(source);
            nvcc.spawn().unwrap_or_else(|error| {
                panic!(
                    "cannot start nvcc ({error}): the feature `cuda` needs the CUDA toolkit, or \
                     scripts/cuda-toolchain.sh"
                )
            })
        })
        .collect();
    for (mut nvcc, source) in running.into_iter().zip(&sources) {
        let status = nvcc.wait().expect("nvcc was started");
        assert!(status.success(), "nvcc could not compile {}", source.display());
    }
}

/// The GPU generation to build for: `CUDA_COMPUTE_CAP`, or the generation of the first GPU.
fn capability() -> String {
    if let Ok(configured) = env::var("CUDA_COMPUTE_CAP") {
        return configured.replace('.', "");
    }
    let queried = Command::new("nvidia-smi")
        .args(["--query-gpu=compute_cap", "--format=csv,noheader"])
        .output()
        .ok();
    let listed = queried.and_then(|out| String::from_utf8(out.stdout).ok());
    let first = listed
        .as_deref()
        .and_then(|listed| listed.lines().next())
        .map(|line| line.trim().replace('.', ""));
    first.filter(|it| !it.is_empty()).expect("no GPU found; set CUDA_COMPUTE_CAP (90 for Hopper)")
}
