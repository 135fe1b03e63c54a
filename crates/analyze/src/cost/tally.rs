//! Running sums of a model's cost: one row per operator path and kind, in order of first use.
//!
//! Sums are u128, so that no dimensions overflow them; figures saturate at `u64::MAX`.

use std::collections::BTreeMap;

use super::{ModuleCost, Traffic};

/// The stage of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CostStage {
    Prefill,
    Decode,
}

/// FLOPs of calls, and bytes by kind of data.
#[derive(Debug, Clone, Copy, Default)]
pub struct OperatorWork {
    pub calls: u128,
    pub flops: u128,
    pub weights: u128,
    /// Weights read when no two tokens choose the same expert.
    pub max_weights: u128,
    pub read: u128,
    pub written: u128,
    pub kv_read: u128,
    pub kv_written: u128,
}

impl OperatorWork {
    /// One call: reads `read` bytes of activations and `weights` bytes of weights, and writes
    /// `written`.
    pub fn call(flops: u128, weights: u128, read: u128, written: u128) -> Self {
        Self { calls: 1, flops, weights, max_weights: weights, read, written, ..Self::default() }
    }

    /// The work of `times` such calls.
    pub fn times(self, times: u128) -> Self {
        Self {
            calls: self.calls * times,
            flops: self.flops * times,
            weights: self.weights * times,
            max_weights: self.max_weights * times,
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
        self.max_weights += other.max_weights;
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
            max_weight_bytes: narrow(self.max_weights),
            activation_bytes: narrow(self.read + self.written),
            kv_read_bytes: narrow(self.kv_read),
            kv_written_bytes: narrow(self.kv_written),
            bytes: narrow(self.weights + others),
            output_bytes: narrow(output),
        }
    }
}

/// FLOPs of `batch` products of (`m` x `k`) and (`k` x `n`).
pub fn matmul(batch: u128, m: u128, k: u128, n: u128) -> u128 {
    2 * batch * m * k * n
}

pub fn narrow(sum: u128) -> u64 {
    u64::try_from(sum).unwrap_or(u64::MAX)
}

#[derive(Default)]
struct TallyRow {
    parameters: u128,
    prefill: OperatorWork,
    decode: OperatorWork,
    /// Bytes of the largest result of one call, by stage.
    outputs: [u128; 2],
}

/// Operator path, kind, and layer if each has rows of its own.
type TallyKey = (&'static str, &'static str, Option<usize>);

/// Sums per operator.
pub struct CostTally {
    /// Bytes of one weight or activation.
    pub element: u128,
    per_layer: bool,
    /// The layer of what is added.
    layer: Option<usize>,
    order: BTreeMap<TallyKey, usize>,
    rows: Vec<(TallyKey, TallyRow)>,
}

impl CostTally {
    /// `per_layer`: the operators of each layer have rows of their own.
    pub fn new(element_bytes: u64, per_layer: bool) -> Self {
        let element = element_bytes.into();
        Self { element, per_layer, layer: None, order: BTreeMap::new(), rows: Vec::new() }
    }

    /// Sets the layer of what is added next; `None` after the last layer.
    pub fn set_layer(&mut self, layer: Option<usize>) {
        self.layer = layer.filter(|_| self.per_layer);
    }

    fn at(&mut self, path: &'static str, op: &'static str) -> &mut TallyRow {
        let key = (path, op, self.layer);
        let index = *self.order.entry(key).or_insert_with(|| {
            self.rows.push((key, TallyRow::default()));
            self.rows.len() - 1
        });
        &mut self.rows[index].1
    }

    /// Adds parameters held by the operator.
    pub fn parameters(&mut self, path: &'static str, op: &'static str, count: u128) {
        self.at(path, op).parameters += count;
    }

    /// Adds calls of the operator.
    pub fn add(
        &mut self,
        stage: CostStage,
        path: &'static str,
        op: &'static str,
        work: OperatorWork,
    ) {
        let row = self.at(path, op);
        let sum = if stage == CostStage::Prefill { &mut row.prefill } else { &mut row.decode };
        sum.add(work);
        let output = &mut row.outputs[stage as usize];
        *output = (*output).max(work.written.checked_div(work.calls).unwrap_or(0));
    }

    /// Adds `times` calls of `x W^T + b` on `rows` vectors.
    pub fn linear(
        &mut self,
        stage: CostStage,
        path: &'static str,
        times: u128,
        rows: u128,
        shape: LinearShape,
    ) {
        let LinearShape { inputs, outputs, bias } = shape;
        let weights = inputs * outputs + if bias { outputs } else { 0 };
        let e = self.element;
        let call = OperatorWork::call(
            matmul(1, rows, inputs, outputs),
            weights * e,
            rows * inputs * e,
            rows * outputs * e,
        );
        self.add(stage, path, "linear", call.times(times));
    }

    /// Adds calls of an operator without FLOPs that moves these elements.
    pub fn pointwise(
        &mut self,
        stage: CostStage,
        path: &'static str,
        op: &'static str,
        times: u128,
        moved: MovedElements,
    ) {
        let e = self.element;
        self.add(
            stage,
            path,
            op,
            OperatorWork::call(0, moved.weights * e, moved.read * e, moved.written * e)
                .times(times),
        );
    }

    /// Sum of the parameters of all rows.
    pub fn all_parameters(&self) -> u128 {
        self.rows.iter().map(|(_, row)| row.parameters).sum()
    }

    /// FLOPs of the rows whose path starts with `prefix`.
    pub fn flops(&self, stage: CostStage, prefix: &str) -> u128 {
        let of = |row: &TallyRow| {
            if stage == CostStage::Prefill { row.prefill.flops } else { row.decode.flops }
        };
        self.rows
            .iter()
            .filter(|((path, ..), _)| path.starts_with(prefix))
            .map(|(_, row)| of(row))
            .sum()
    }

    /// Bytes moved by all rows in a stage.
    pub fn traffic(&self, stage: CostStage) -> Traffic {
        let (mut sum, mut output) = (OperatorWork::default(), 0);
        for (_, row) in &self.rows {
            sum.add(if stage == CostStage::Prefill { row.prefill } else { row.decode });
            output = output.max(row.outputs[stage as usize]);
        }
        sum.traffic(output)
    }

    /// Converts the rows for a report.
    pub fn into_modules(self) -> Vec<ModuleCost> {
        let element = self.element;
        let module = |((path, op, layer), row): (TallyKey, TallyRow)| ModuleCost {
            path: match layer {
                Some(layer) => path.replacen('*', &layer.to_string(), 1),
                None => path.into(),
            },
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
pub struct LinearShape {
    pub inputs: u128,
    pub outputs: u128,
    pub bias: bool,
}

/// Elements moved by one call of an operator.
#[derive(Debug, Clone, Copy, Default)]
pub struct MovedElements {
    pub weights: u128,
    pub read: u128,
    pub written: u128,
}
