//! What is summed while a model is counted: one row per operator path and kind, in the order in which they first come up.
//!
//! Sums are wide, so that no dimensions overflow them; a figure past what a report holds stays at its largest.

use std::collections::BTreeMap;

use super::{ModuleCost, Traffic};

/// Where a call belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Prefill,
    Decode,
}

/// What calls do: FLOPs, and bytes by what is moved.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work {
    pub calls: u128,
    pub flops: u128,
    pub weights: u128,
    /// Weights where every choice of an expert meets another one.
    pub weights_at_most: u128,
    pub read: u128,
    pub written: u128,
    pub kv_read: u128,
    pub kv_written: u128,
}

impl Work {
    /// One call that reads `read` bytes of activations and `weights` bytes of weights, and writes `written`.
    pub fn call(flops: u128, weights: u128, read: u128, written: u128) -> Self {
        Self { calls: 1, flops, weights, weights_at_most: weights, read, written, ..Self::default() }
    }

    /// The same, `times` times.
    pub fn times(self, times: u128) -> Self {
        Self {
            calls: self.calls * times,
            flops: self.flops * times,
            weights: self.weights * times,
            weights_at_most: self.weights_at_most * times,
            read: self.read * times,
            written: self.written * times,
            kv_read: self.kv_read * times,
            kv_written: self.kv_written * times,
        }
    }

    fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.flops += other.flops;
        self.weights += other.weights;
        self.weights_at_most += other.weights_at_most;
        self.read += other.read;
        self.written += other.written;
        self.kv_read += other.kv_read;
        self.kv_written += other.kv_written;
    }

    fn traffic(self, output: u128) -> Traffic {
        let others = self.read + self.written + self.kv_read + self.kv_written;
        Traffic {
            calls: narrow(self.calls),
            weight_bytes: narrow(self.weights),
            weight_bytes_at_most: narrow(self.weights_at_most),
            activation_bytes: narrow(self.read + self.written),
            kv_read_bytes: narrow(self.kv_read),
            kv_written_bytes: narrow(self.kv_written),
            bytes: narrow(self.weights + others),
            output_bytes: narrow(output),
        }
    }
}

/// FLOPs of `batch` products of `m` x `k` by `k` x `n`.
pub fn matmul(batch: u128, m: u128, k: u128, n: u128) -> u128 {
    2 * batch * m * k * n
}

pub fn narrow(sum: u128) -> u64 {
    u64::try_from(sum).unwrap_or(u64::MAX)
}

#[derive(Default)]
struct Row {
    parameters: u128,
    prefill: Work,
    decode: Work,
    /// Bytes of the largest result of one call, per stage.
    outputs: [u128; 2],
}

/// Sums per operator.
pub struct Tally {
    /// Bytes of one weight and of one activation.
    pub element: u128,
    order: BTreeMap<(&'static str, &'static str), usize>,
    rows: Vec<(&'static str, &'static str, Row)>,
}

impl Tally {
    pub fn new(element_bytes: u64) -> Self {
        Self { element: element_bytes.into(), order: BTreeMap::new(), rows: Vec::new() }
    }

    fn at(&mut self, path: &'static str, op: &'static str) -> &mut Row {
        let index = *self.order.entry((path, op)).or_insert_with(|| {
            self.rows.push((path, op, Row::default()));
            self.rows.len() - 1
        });
        &mut self.rows[index].2
    }

    /// Adds parameters that the operator keeps.
    pub fn parameters(&mut self, path: &'static str, op: &'static str, count: u128) {
        self.at(path, op).parameters += count;
    }

    /// Adds calls of the operator.
    pub fn add(&mut self, stage: Stage, path: &'static str, op: &'static str, work: Work) {
        let row = self.at(path, op);
        let sum = if stage == Stage::Prefill { &mut row.prefill } else { &mut row.decode };
        sum.add(work);
        let output = &mut row.outputs[stage as usize];
        *output = (*output).max(work.written.checked_div(work.calls).unwrap_or(0));
    }

    /// Adds calls of `x W^T + b` over `rows` vectors, `times` times.
    pub fn linear(&mut self, stage: Stage, path: &'static str, times: u128, rows: u128, shape: Linear) {
        let Linear { inputs, outputs, bias } = shape;
        let weights = inputs * outputs + if bias { outputs } else { 0 };
        let e = self.element;
        let call = Work::call(matmul(1, rows, inputs, outputs), weights * e, rows * inputs * e, rows * outputs * e);
        self.add(stage, path, "linear", call.times(times));
    }

    /// Adds calls of an operator without FLOPs over `read` and `written` elements.
    pub fn pointwise(&mut self, stage: Stage, path: &'static str, op: &'static str, times: u128, moved: Moved) {
        let e = self.element;
        self.add(stage, path, op, Work::call(0, moved.weights * e, moved.read * e, moved.written * e).times(times));
    }

    /// Parameters of all rows.
    pub fn all_parameters(&self) -> u128 {
        self.rows.iter().map(|(_, _, row)| row.parameters).sum()
    }

    /// FLOPs of the rows whose path begins with `prefix`.
    pub fn flops(&self, stage: Stage, prefix: &str) -> u128 {
        let of = |row: &Row| if stage == Stage::Prefill { row.prefill.flops } else { row.decode.flops };
        self.rows.iter().filter(|(path, _, _)| path.starts_with(prefix)).map(|(_, _, row)| of(row)).sum()
    }

    /// What all rows move in a stage.
    pub fn traffic(&self, stage: Stage) -> Traffic {
        let (mut sum, mut output) = (Work::default(), 0);
        for (_, _, row) in &self.rows {
            sum.add(if stage == Stage::Prefill { row.prefill } else { row.decode });
            output = output.max(row.outputs[stage as usize]);
        }
        sum.traffic(output)
    }

    /// The rows, as a report holds them.
    pub fn into_modules(self) -> Vec<ModuleCost> {
        let element = self.element;
        let module = |(path, op, row): (&str, &str, Row)| ModuleCost {
            path: path.into(),
            op: op.into(),
            parameters: narrow(row.parameters),
            weight_bytes: narrow(row.parameters * element),
            prefill_flops: narrow(row.prefill.flops),
            decode_flops: narrow(row.decode.flops),
            prefill: row.prefill.traffic(row.outputs[0]),
            decode: row.decode.traffic(row.outputs[1]),
        };
        self.rows.into_iter().map(module).collect()
    }
}

/// The shape of a linear layer.
#[derive(Debug, Clone, Copy)]
pub struct Linear {
    pub inputs: u128,
    pub outputs: u128,
    pub bias: bool,
}

/// Elements that an operator moves in one call.
#[derive(Debug, Clone, Copy, Default)]
pub struct Moved {
    pub weights: u128,
    pub read: u128,
    pub written: u128,
}
