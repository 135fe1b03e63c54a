//! The compiled kernels of `kernels/*.cu`, and their launch.
//!
//! The driver alone checks a launch: the callers in this folder check shapes and dtypes.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    ffi::c_void,
    rc::Rc,
    sync::Arc,
};

use candle_core::{
    CudaDevice, DType, Error, Result, Storage, Tensor,
    cuda_backend::{
        CudaStorageSlice,
        cudarc::{
            driver::{CudaFunction, CudaModule, DevicePtr, result, sys},
            nvrtc::Ptx,
        },
    },
};

/// Machine code for the GPU generation of the build, and PTX for later ones.
const MODULES: &[&[u8]] = &[
    include_bytes!(concat!(env!("OUT_DIR"), "/attention.fatbin")),
    include_bytes!(concat!(env!("OUT_DIR"), "/attention_batch.fatbin")),
    include_bytes!(concat!(env!("OUT_DIR"), "/attention_grid.fatbin")),
    include_bytes!(concat!(env!("OUT_DIR"), "/attention_one.fatbin")),
    include_bytes!(concat!(env!("OUT_DIR"), "/conv.fatbin")),
    include_bytes!(concat!(env!("OUT_DIR"), "/gemv.fatbin")),
    include_bytes!(concat!(env!("OUT_DIR"), "/grouped.fatbin")),
    include_bytes!(concat!(env!("OUT_DIR"), "/moe.fatbin")),
    include_bytes!(concat!(env!("OUT_DIR"), "/norm.fatbin")),
    include_bytes!(concat!(env!("OUT_DIR"), "/pointwise.fatbin")),
    include_bytes!(concat!(env!("OUT_DIR"), "/rope.fatbin")),
    include_bytes!(concat!(env!("OUT_DIR"), "/sample.fatbin")),
];
/// Shared memory of a block without the attribute for more.
const DEFAULT_SHARED_BYTES: u32 = 48 << 10;

/// True if blocks of the kernels form clusters: in builds for sm_90 or later.
pub fn has_clusters() -> bool {
    let generation = env!("LLMPROF_COMPUTE_CAP").trim_end_matches(char::is_alphabetic);
    generation.parse::<u32>().is_ok_and(|generation| generation >= 90)
}

/// The key of a kernel: its name, and the dtype of its variant.
type KernelKey = (&'static str, Option<DType>);

struct LoadedKernels {
    modules: Vec<Arc<CudaModule>>,
    functions: RefCell<HashMap<KernelKey, Rc<KernelFunction>>>,
}

struct KernelFunction {
    function: CudaFunction,
    shared_bytes: Cell<u32>,
}

thread_local! {
    /// One GPU at a time, driven from one thread.
    static LOADED: RefCell<Option<Rc<LoadedKernels>>> = const { RefCell::new(None) };
}

/// Loads the kernels onto `device`.
pub fn load(device: &CudaDevice) -> std::result::Result<(), String> {
    let stream = device.cuda_stream();
    let context = stream.context();
    let modules = MODULES
        .iter()
        .map(|image| context.load_module(Ptx::from_binary(image.to_vec())))
        .collect::<std::result::Result<Vec<_>, _>>();
    let modules = modules.map_err(|error| {
        let (major, minor) = context.compute_capability().unwrap_or_default();
        format!(
            "cannot load the kernels, built for compute capability {}, on {major}.{minor} \
             ({error}); build with CUDA_COMPUTE_CAP={major}{minor}",
            env!("LLMPROF_COMPUTE_CAP"),
        )
    })?;
    LOADED.set(Some(Rc::new(LoadedKernels { modules, functions: RefCell::default() })));
    Ok(())
}

/// A kernel's argument.
pub enum KernelArg {
    Pointer(u64),
    Int(i32),
    Long(u64),
    Float(f32),
    /// A structure, as declared by the kernel.
    Bytes(Vec<u64>),
}

/// Number of blocks, threads per block, and shared memory per block.
#[derive(Debug, Clone, Copy)]
pub struct LaunchGrid {
    pub blocks: (u32, u32, u32),
    pub threads: u32,
    pub shared_bytes: usize,
}

impl LaunchGrid {
    pub fn new(blocks: (usize, usize), threads: usize) -> Self {
        Self {
            blocks: (blocks.0 as u32, blocks.1 as u32, 1),
            threads: threads as u32,
            shared_bytes: 0,
        }
    }

    /// Blocks of 256 threads for `count` elements, `each` per thread.
    pub fn over(count: usize, each: usize) -> Self {
        Self::new((count.div_ceil(256 * each), 1), 256)
    }

    /// As many of these grids, along the third dimension.
    pub fn times(self, count: usize) -> Self {
        Self { blocks: (self.blocks.0, self.blocks.1, count as u32), ..self }
    }

    pub fn shared(self, bytes: usize) -> Self {
        Self { shared_bytes: bytes, ..self }
    }
}

/// Launches `name`, in its variant for `dtype` if it has variants.
pub fn launch(
    device: &CudaDevice,
    name: &'static str,
    dtype: Option<DType>,
    grid: LaunchGrid,
    args: &mut [KernelArg],
) -> Result<()> {
    let function = function(name, dtype)?;
    let shared_bytes = grid.shared_bytes as u32;
    if shared_bytes > function.shared_bytes.get() {
        let max_shared =
            sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        function
            .function
            .set_attribute(max_shared, shared_bytes as i32)
            .map_err(|error| failed(name, error))?;
        function.shared_bytes.set(shared_bytes);
    }
    let mut pointers: Vec<*mut c_void> = args.iter_mut().map(KernelArg::pointer).collect();
    let (blocks, threads) = (grid.blocks, (grid.threads, 1, 1));
    let stream = device.cuda_stream();
    // SAFETY: the launch copies the arguments before it returns.
    unsafe {
        result::launch_kernel(
            function.function.cu_function(),
            blocks,
            threads,
            shared_bytes,
            stream.cu_stream(),
            &mut pointers,
        )
    }
    .map_err(|error| failed(name, error))
}

fn failed(name: &str, error: impl std::fmt::Display) -> Error {
    Error::Msg(format!("kernel {name}: {error}"))
}

fn function(name: &'static str, dtype: Option<DType>) -> Result<Rc<KernelFunction>> {
    let loaded =
        LOADED.with_borrow(Clone::clone).ok_or_else(|| failed(name, "no kernels are loaded"))?;
    if let Some(function) = loaded.functions.borrow().get(&(name, dtype)) {
        return Ok(function.clone());
    }
    let full = dtype.map_or_else(|| name.to_owned(), |dtype| format!("{name}_{}", dtype.as_str()));
    let function = loaded.modules.iter().find_map(|module| module.load_function(&full).ok());
    let function = function.ok_or_else(|| failed(&full, "not found in the build"))?;
    let function =
        Rc::new(KernelFunction { function, shared_bytes: Cell::new(DEFAULT_SHARED_BYTES) });
    loaded.functions.borrow_mut().insert((name, dtype), function.clone());
    Ok(function)
}

impl KernelArg {
    /// The address of `tensor`.
    pub fn tensor(tensor: &Tensor) -> Result<Self> {
        pointer(tensor).map(Self::Pointer)
    }

    /// The address of `tensor`, or null.
    pub fn optional(tensor: Option<&Tensor>) -> Result<Self> {
        tensor.map_or(Ok(Self::Pointer(0)), Self::tensor)
    }

    pub fn int(value: usize) -> Self {
        Self::Int(value as i32)
    }

    fn pointer(&mut self) -> *mut c_void {
        match self {
            Self::Pointer(value) | Self::Long(value) => (&raw mut *value).cast(),
            Self::Int(value) => (&raw mut *value).cast(),
            Self::Float(value) => (&raw mut *value).cast(),
            Self::Bytes(words) => words.as_mut_ptr().cast(),
        }
    }
}

/// Device address of a tensor's first element.
pub fn pointer(tensor: &Tensor) -> Result<u64> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        candle_core::bail!("the tensor of a kernel is not on the GPU")
    };
    let stream = storage.device.cuda_stream();
    let base = match &storage.slice {
        CudaStorageSlice::BF16(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::F16(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::F32(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::U32(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::I32(slice) => slice.device_ptr(&stream).0,
        _ => candle_core::bail!("kernels do not support {:?}", tensor.dtype()),
    };
    Ok(base + (layout.start_offset() * tensor.dtype().size_in_bytes()) as u64)
}
