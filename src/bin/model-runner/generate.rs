//! One repeat: prefill, then a fixed number of decode steps, each under its range; and a step captured as a CUDA graph.
//!
//! Inside a timed stage nothing is written, hashed or formatted. Knows no model: a [`Program`] is what runs.

use std::time::Duration;

use candle_core::{DType, Device, Result, Tensor};
use llmprof::trace::event::Steady;
use sha2::{Digest, Sha256};

use crate::{
    ops::Cursor,
    record::{Recorder, now_ns},
};

/// What can be prefilled and stepped: a whole model with its text, or a part of one with its inputs.
pub trait Program {
    /// Back to the beginning, with the memory kept.
    fn clear(&mut self) -> Result<()>;

    /// Everything that is known at the beginning, at once.
    fn prefill(&mut self) -> Result<()>;

    /// One token more. Captured as a graph it must ask the host nothing.
    fn step(&mut self) -> Result<()>;

    /// Whether it has steps at all.
    fn steps(&self) -> bool;

    /// Back to where the prefill of `tokens` tokens ended.
    fn rewind(&mut self, tokens: usize) -> Result<()> {
        let cursor = self.cursor();
        cursor.clear()?;
        cursor.advance(tokens)
    }

    /// Where the next token stands.
    fn cursor(&mut self) -> &mut Cursor;

    /// Notes that a replayed graph made one step.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only a replayed graph asks"))]
    fn follow(&mut self) {}

    /// Makes synthetic weights behave as trained ones would, where they must.
    fn balance(&mut self) -> Result<()> {
        Ok(())
    }

    /// What was computed in a prefill and `steps` steps; tells what only the GPU knew meanwhile.
    fn computed(&mut self, steps: usize) -> Result<Computed>;
}

/// What one repeat computed: the tokens, and the values that tell whether two runs computed the same.
pub struct Computed {
    pub tokens: Vec<u32>,
    /// Logits that each token was chosen from; of a part of a model, its outputs.
    pub values: Vec<Tensor>,
}

impl Computed {
    /// SHA-256 over the values, as little-endian f32.
    pub fn sha256(&self) -> Result<String> {
        let mut hash = Sha256::new();
        for values in &self.values {
            for value in values.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()? {
                hash.update(value.to_le_bytes());
            }
        }
        Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// A program, ready to run any number of times.
pub struct Session {
    pub program: Box<dyn Program>,
    pub recorder: Recorder,
    pub max_new_tokens: u32,
    pub device: Device,
    /// A decode step as a graph, once captured.
    pub graph: Option<StepGraph>,
    /// What the rest of a model would read between two steps of a part.
    #[cfg(feature = "cuda")]
    pub others: Option<crate::gpu::Others>,
}

impl Session {
    /// Runs once, from the beginning.
    ///
    /// An end-of-text token does not end it: every repeat, and every pass under a profiler, does the same work, or their times could
    /// not be compared. A stage ends when the device is done with it.
    pub fn run(&mut self) -> Result<Computed> {
        self.program.clear()?;
        self.leave()?;
        self.device.synchronize()?;
        {
            let _prefill = self.recorder.range("prefill");
            self.program.prefill()?;
            self.device.synchronize()?;
        }
        let steps = if self.program.steps() { self.max_new_tokens } else { 0 };
        if steps > 0 {
            let _decode_all = self.recorder.range("decode_all");
            self.decode(steps)?;
        }
        self.program.computed(steps as usize)
    }

    /// Takes `steps` steps, the host one ahead of the GPU: a token stays where the next step reads it, so a step is launched while the one before
    /// runs, as engines do that schedule asynchronously. The range of a step is open from its launch until the one before is done.
    fn decode(&mut self, steps: u32) -> Result<()> {
        #[cfg(feature = "cuda")]
        let mut pace = if let Device::Cuda(device) = &self.device { Some(crate::gpu::Pace::new(device)) } else { None };
        for step in 0..steps {
            self.leave()?;
            let _step = self.recorder.decode_step(step);
            self.step()?;
            #[cfg(feature = "cuda")]
            if let Some(pace) = &mut pace {
                pace.launched()?;
            }
        }
        self.device.synchronize()
    }

    /// Does to the GPU's cache what the rest of a model would, where a part is to find it so.
    fn leave(&self) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Some(others) = &self.others {
            others.read()?;
        }
        Ok(())
    }

    /// Runs each stage back to back for `time` at least, unrecorded: what it computes is what the last repeat computed.
    pub fn steady(&mut self, time: Duration) -> Result<Vec<Steady>> {
        let recorder = self.recorder.clone();
        recorder.quietly(|| {
            let prefill = self.over(time, "prefill", |session| {
                session.program.clear()?;
                session.program.prefill()?;
                session.device.synchronize()
            })?;
            let steps = if self.program.steps() { self.max_new_tokens } else { 0 };
            if steps == 0 {
                return Ok(vec![prefill]);
            }
            let prompt = self.program.cursor().position();
            let decode = self.over(time, "decode_all", |session| {
                session.program.rewind(prompt)?;
                session.decode(steps)
            })?;
            Ok(vec![prefill, decode])
        })
    }

    /// Does `once` until `time` is over.
    fn over(&mut self, time: Duration, stage: &str, mut once: impl FnMut(&mut Self) -> Result<()>) -> Result<Steady> {
        let start_ns = now_ns();
        let mut steady = Steady { stage: stage.to_owned(), start_ns, end_ns: start_ns, instances: 0 };
        while i128::from(steady.end_ns - start_ns) < time.as_nanos() as i128 {
            once(self)?;
            (steady.end_ns, steady.instances) = (now_ns(), steady.instances + 1);
        }
        Ok(steady)
    }

    /// One more token, by the graph where there is one.
    fn step(&mut self) -> Result<()> {
        match &self.graph {
            #[cfg(feature = "cuda")]
            Some(graph) => graph.replay(self.program.as_mut(), &self.recorder),
            #[cfg(not(feature = "cuda"))]
            Some(graph) => match *graph {},
            None => self.program.step(),
        }
    }
}

/// There are no graphs without a GPU.
#[cfg(not(feature = "cuda"))]
pub enum StepGraph {}

/// A decode step, captured.
#[cfg(feature = "cuda")]
pub struct StepGraph {
    graph: crate::gpu::Graph,
    captured: crate::record::Captured,
    /// Where the captured token stood.
    position: usize,
}

#[cfg(feature = "cuda")]
impl Session {
    /// Captures a decode step, under the range `capture`. The operators' ranges are open as their kernels are captured, so a trace of
    /// the graph's nodes can be told apart by operator.
    pub fn capture(&mut self) -> Result<()> {
        let Device::Cuda(device) = &self.device else { return Ok(()) };
        let Self { program, recorder, .. } = self;
        program.clear()?;
        // Once for real: what kernels load at first use cannot be captured.
        recorder.quietly(|| program.step())?;
        let position = program.cursor().position();
        let _capture = recorder.range("capture");
        let (captured, calls) = recorder.captured(|| crate::gpu::Graph::capture(device, || program.step()));
        let (graph, ()) = captured?;
        self.graph = Some(StepGraph { graph, captured: calls, position });
        Ok(())
    }
}

#[cfg(feature = "cuda")]
impl StepGraph {
    fn replay(&self, program: &mut dyn Program, recorder: &Recorder) -> Result<()> {
        recorder.replayed(&self.captured, (program.cursor().position() - self.position) as u64);
        self.graph.replay()?;
        program.cursor().follow(1);
        program.follow();
        Ok(())
    }
}
