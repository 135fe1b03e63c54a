//! Floors of operators: the time of their FLOPs at the ceiling of their dtype, or of the bytes that
//! have to move at the bandwidth, whichever is longer.

use std::collections::BTreeMap;

use llmprof_core::{
    domain::dtype::Dtype,
    trace::{
        counter::{CounterValues, UncountedOperations},
        environment::Gpu,
        timeline::Timeline,
    },
};

use crate::{
    cost::{ModuleCost, Traffic},
    roofline::ceilings::DeviceCeilings,
    stages::PREFILL,
    stats::ratio,
};

/// The remedy for a device without peaks.
const ADD_DEVICE: &str = "state its peaks in a file (`--devices FILE`, or the setting \
                          tools.devices)";

/// A ceiling and its source.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    pub per_s: f64,
    /// `measured` on this device, of the `datasheet`, or recorded in the `capture`.
    pub source: &'static str,
}

impl Rate {
    /// Nanoseconds of `amount`.
    pub fn ns(self, amount: f64) -> f64 {
        ratio(amount * 1e9, self.per_s).unwrap_or(0.0)
    }
}

/// The ceilings of the device that floors use.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rates {
    pub bytes: Option<Rate>,
    /// Clause why the bandwidth is unknown, with its remedy.
    pub why_no_bytes: Option<String>,
    /// FLOP/s by dtype.
    pub flops: BTreeMap<String, Rate>,
    /// Datasheet's bandwidth, to which sampled shares relate.
    pub datasheet_bytes: Option<f64>,
    /// Dtype of the model's operators.
    pub dtype: String,
}

impl Rates {
    /// The rates of the device of `capture`.
    pub fn of(dtype: Option<Dtype>, ceilings: &DeviceCeilings, capture: Option<&Timeline>) -> Self {
        let gpus = capture.map(|it| it.target.gpus.as_slice());
        let best = |measured: Option<f64>, datasheet: Option<f64>| {
            let measured = measured.map(|per_s| Rate { per_s, source: "measured" });
            measured.or(datasheet.map(|per_s| Rate { per_s, source: "datasheet" }))
        };
        let flops = |dtype: &str| {
            let rate = best(ceilings.measured_flops(dtype), ceilings.datasheet_flops(dtype))?;
            Some((dtype.to_owned(), rate))
        };
        let bytes = best(ceilings.measured_bytes(), ceilings.datasheet_bytes());
        let bytes = bytes.or_else(|| captured_bytes(gpus?));
        Self {
            bytes,
            why_no_bytes: bytes.is_none().then(|| why_no_bytes(capture)),
            flops: ceilings.dtypes().into_iter().filter_map(flops).collect(),
            datasheet_bytes: ceilings.datasheet_bytes(),
            dtype: dtype.map(|dtype| dtype.to_string()).unwrap_or_default(),
        }
    }

    /// Time of the operations of one launch at the ceiling of each dtype, without those that may be
    /// loads of constants; `None` if the operations were not counted or a ceiling is unknown.
    pub fn counted_ns(&self, values: &CounterValues) -> Option<f64> {
        let may_be_constants = values.uncounted == Some(UncountedOperations::HalfPrecision);
        if !values.flops_complete && !may_be_constants {
            return None;
        }
        let time = |(format, flops): (&String, &f64)| {
            if *flops <= 0.0 {
                return Some(0.0);
            }
            let dtype = match format.as_str() {
                "tensor_bf16" => "bf16",
                "tensor_fp16" => "f16",
                "fp32" | "fp16" => "f32",
                _ => return None,
            };
            Some(self.flops.get(dtype)?.ns(*flops))
        };
        values.flops.iter().map(time).sum()
    }
}

/// The bandwidth that a capture records, if its GPUs have the same.
fn captured_bytes(gpus: &[Gpu]) -> Option<Rate> {
    let first = gpus.first()?.bytes_per_s?;
    let is_same = gpus.iter().all(|it| it.bytes_per_s == Some(first));
    is_same.then_some(Rate { per_s: first as f64, source: "capture" })
}

/// The clause why the bandwidth is unknown, with its remedy.
fn why_no_bytes(capture: Option<&Timeline>) -> String {
    let gpus = capture.map_or(&[][..], |it| &it.target.gpus);
    let mut names: Vec<&str> = gpus.iter().map(|it| it.name.trim()).collect();
    names.retain(|it| !it.is_empty());
    names.sort_unstable();
    names.dedup();
    match names.as_slice() {
        [] if capture.is_none() => {
            format!("the memory bandwidth of the device is unknown. To have it, {ADD_DEVICE}")
        }
        [] => "the capture names no GPU, so its memory bandwidth is unknown. Import a capture \
               that names it: a trace by PyTorch with deviceProperties, or an export by nsys with \
               the table TARGET_INFO_GPU"
            .to_owned(),
        [name] if capture.is_some_and(Timeline::calls_hip) => {
            format!("the memory bandwidth of {name} is unknown. To have it, {ADD_DEVICE}")
        }
        [name] => format!(
            "the memory bandwidth of {name} is unknown. Record with nsys, whose exports have it \
             (TARGET_INFO_GPU.memoryBandwidth), or {ADD_DEVICE}"
        ),
        names => format!(
            "the capture has GPUs of several models ({}), so no memory bandwidth applies to all. \
             Record on GPUs of one model",
            names.join(", ")
        ),
    }
}

/// The sentence of a clause why the floor is unknown.
pub fn speed_unknown(why: &str) -> String {
    format!("How fast it could be is unknown: {why}.")
}

/// Floor of one operator in one repeat of a stage.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct OperatorFloor {
    pub ns: f64,
    /// FLOPs of matrix products.
    pub flops: f64,
    /// `None` for a share of a floor whose operators are not the capture's.
    pub bytes: Option<NecessaryBytes>,
    /// Bytes take longer than FLOPs.
    pub is_memory_bound: bool,
    /// Name in place of the operator's path.
    pub name: Option<&'static str>,
}

/// Bytes of the calls of operators.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NecessaryBytes {
    /// Bytes that have to move.
    pub needed: f64,
    /// All operands and results.
    pub all: f64,
}

impl OperatorFloor {
    /// The floor of several operators together.
    pub fn sum<'a>(floors: impl Iterator<Item = &'a Self>) -> Self {
        let mut sum = Self { bytes: Some(NecessaryBytes::default()), ..Self::default() };
        let mut memory_ns = 0.0;
        for floor in floors {
            sum.ns += floor.ns;
            sum.flops += floor.flops;
            sum.bytes = sum.bytes.zip(floor.bytes).map(|(sum, more)| NecessaryBytes {
                needed: sum.needed + more.needed,
                all: sum.all + more.all,
            });
            memory_ns += if floor.is_memory_bound { floor.ns } else { 0.0 };
        }
        sum.is_memory_bound = memory_ns * 2.0 >= sum.ns;
        sum
    }

    /// A share of a floor, from 0 to 1.
    pub fn share(self, share: f64) -> Self {
        let bytes = self.bytes.filter(|_| share >= 1.0);
        Self { bytes, ..self }.times(share)
    }

    /// A multiple of all its figures.
    fn times(self, factor: f64) -> Self {
        let bytes = self
            .bytes
            .map(|it| NecessaryBytes { needed: it.needed * factor, all: it.all * factor });
        Self { ns: self.ns * factor, flops: self.flops * factor, bytes, ..self }
    }
}

/// Floors of the operators of one stage, by path with layers rolled up.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Floors {
    pub operators: BTreeMap<String, OperatorFloor>,
    /// True if the model's work is known.
    pub is_model: bool,
    pub missing: Vec<String>,
    /// Clause why the work of the stage is unknown.
    pub why_unknown: Option<&'static str>,
}

impl Floors {
    /// Floors of work that is unknown; `why` is a clause.
    pub fn unknown(why: &'static str) -> Self {
        Self { why_unknown: Some(why), ..Self::default() }
    }

    /// The floors of one instance: the mean over instances, each floor with its number of them.
    pub fn mean(parts: impl Iterator<Item = (Self, u64)>) -> Self {
        let mut mean = Self::default();
        let mut operators: BTreeMap<String, Vec<OperatorFloor>> = BTreeMap::new();
        let mut instances = 0.0;
        for (floors, count) in parts {
            instances += count as f64;
            mean.is_model |= floors.is_model;
            // All parts are of one device, so all miss the same.
            mean.missing = floors.missing;
            for (path, floor) in floors.operators {
                operators.entry(path).or_default().push(floor.times(count as f64));
            }
        }
        let one = ratio(1.0, instances).unwrap_or(0.0);
        let sums = operators.into_iter();
        mean.operators =
            sums.map(|(path, it)| (path, OperatorFloor::sum(it.iter()).times(one))).collect();
        mean
    }

    /// Floors of the work of one instance of prefill or decode.
    pub fn of(stage: &str, work: &[ModuleCost], rates: &Rates, l2_bytes: Option<u64>) -> Self {
        let mut floors = Self::default();
        let Some(bytes_rate) = rates.bytes else {
            floors.missing.extend(rates.why_no_bytes.as_deref().map(speed_unknown));
            return floors;
        };
        let flops_rate = rates.flops.get(&rates.dtype);
        if flops_rate.is_none() {
            floors.missing.push(format!(
                "The peak of products in {} is unknown: floors count bytes only. To have it, \
                 {ADD_DEVICE}.",
                rates.dtype
            ));
        }
        if l2_bytes.is_none() {
            floors.missing.push(
                "The size of the L2 cache is unknown: activations between operators are not part \
                 of the floor. Trace with nsys, whose export has it."
                    .into(),
            );
        }
        for row in work {
            let (flops, traffic) = match stage {
                PREFILL => (row.prefill_flops as f64, &row.prefill),
                _ => (row.decode_flops as f64, &row.decode),
            };
            let needed = needed_bytes(traffic, l2_bytes);
            let flops_ns = flops_rate.map_or(0.0, |rate| rate.ns(flops));
            let bytes_ns = bytes_rate.ns(needed);
            let floor = floors.operators.entry(row.path.clone()).or_default();
            floor.ns += flops_ns.max(bytes_ns);
            floor.flops += flops;
            let bytes = floor.bytes.get_or_insert_default();
            bytes.needed += needed;
            bytes.all += traffic.bytes as f64;
            floor.is_memory_bound = bytes_ns >= flops_ns;
        }
        // Without decode steps there is no work of decode, and no floor.
        floors.is_model = floors.operators.values().any(|floor| floor.ns > 0.0);
        floors
    }
}

/// Bytes that calls have to move: weights and cache, and of the activations of each call those that
/// the L2 cache cannot hold.
fn needed_bytes(traffic: &Traffic, l2_bytes: Option<u64>) -> f64 {
    // Each may be saturated.
    let fixed = [traffic.weight_bytes, traffic.kv_read_bytes, traffic.kv_written_bytes];
    let fixed: f64 = fixed.into_iter().map(|bytes| bytes as f64).sum();
    let per_call = ratio(traffic.activation_bytes as f64, traffic.calls as f64).unwrap_or(0.0);
    let beyond = l2_bytes.map_or(0.0, |l2| (per_call - l2 as f64).max(0.0));
    fixed + beyond * traffic.calls as f64
}
