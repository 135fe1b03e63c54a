//! One repeat: prefill, then a fixed number of decode steps, each in its range; and a step captured
//! as a CUDA graph.
//!
//! Inside a timed stage nothing is written, hashed or formatted. Independent of the model, which is
//! a [`Program`].

use std::time::Duration;

use candle_core::{DType, Device, Result, Tensor};
use llmprof_core::{domain::hex::hex, trace::event::Steady};
use sha2::{Digest, Sha256};

use crate::{
    ops::Cursor,
    record::{Recorder, now_ns},
};

/// A computation with a prefill and steps: a whole model with its text, or a part of one with its
/// inputs.
pub trait Program {
    /// Selects the batch of the following repeats; a part of a model has one only.
    fn select(&mut self, _batch: usize) {}

    /// Resets to the start; memory is kept.
    fn clear(&mut self) -> Result<()>;

    /// Processes the whole prompt at once.
    fn prefill(&mut self) -> Result<()>;

    /// Computes one more token of each sequence. To be captured as a graph, it must not depend on
    /// the host.
    fn step(&mut self) -> Result<()>;

    /// Returns whether the program has decode steps.
    fn has_steps(&self) -> bool;

    /// Resets to the end of the prefill, whose sequences ended at `positions`.
    fn rewind(&mut self, positions: &[usize]) -> Result<()> {
        self.cursor().set(positions)
    }

    /// The positions of the next tokens.
    fn cursor(&mut self) -> &mut Cursor;

    /// Records one step made by a replayed graph.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "called by replayed graphs"))]
    fn note_replay(&mut self) {}

    /// Adjusts synthetic weights that would not behave like trained ones.
    fn balance(&mut self) -> Result<()> {
        Ok(())
    }

    /// The outputs of a prefill and `steps` steps; records the experts that only the GPU knows.
    fn computed(&mut self, steps: usize) -> Result<ComputedOutputs>;
}

/// The outputs of one repeat: the tokens, and the values by which runs are compared.
pub struct ComputedOutputs {
    /// Generated tokens, sequence after sequence.
    pub tokens: Vec<u32>,
    /// Logits of each token of the first sequence; for a part of a model, its outputs.
    pub values: Vec<Tensor>,
}

impl ComputedOutputs {
    /// SHA-256 over the values, as little-endian f32.
    pub fn sha256(&self) -> Result<String> {
        let mut hash = Sha256::new();
        for values in &self.values {
            for value in values.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()? {
                hash.update(value.to_le_bytes());
            }
        }
        Ok(hex(&hash.finalize()))
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
    /// Flushes the L2 cache between two steps of a part.
    #[cfg(feature = "cuda")]
    pub l2_flush: Option<crate::gpu::L2Flush>,
}

impl Session {
    /// Runs one repeat from the start.
    ///
    /// An end-of-text token does not stop it: every repeat, and every pass under a profiler, does
    /// the same work, so that times are comparable. A stage ends when the device has finished it.
    pub fn run(&mut self) -> Result<ComputedOutputs> {
        self.program.clear()?;
        self.flush_l2()?;
        self.device.synchronize()?;
        {
            let _prefill = self.recorder.range("prefill");
            self.program.prefill()?;
            self.device.synchronize()?;
        }
        let steps = if self.program.has_steps() { self.max_new_tokens } else { 0 };
        if steps > 0 {
            let _decode_all = self.recorder.range("decode_all");
            self.decode(steps, Self::flush_l2)?;
        }
        self.program.computed(steps as usize)
    }

    /// Runs `steps` steps, the host one ahead of the GPU: tokens stay on the device, so a step is
    /// launched while the one before runs, as in engines with asynchronous scheduling. The range of
    /// a step is open from its launch until the one before has finished. `before_step` runs
    /// outside of it.
    fn decode(&mut self, steps: u32, before_step: fn(&Self) -> Result<()>) -> Result<()> {
        #[cfg(feature = "cuda")]
        let mut pace = if let Device::Cuda(device) = &self.device {
            Some(crate::gpu::StepPacer::new(device))
        } else {
            None
        };
        for step in 0..steps {
            before_step(self)?;
            let _step = self.recorder.decode_step(step);
            self.step()?;
            #[cfg(feature = "cuda")]
            if let Some(pace) = &mut pace {
                pace.launched()?;
            }
        }
        self.device.synchronize()
    }

    /// Flushes the L2 cache if requested, as the rest of a model would.
    fn flush_l2(&self) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Some(l2_flush) = &self.l2_flush {
            l2_flush.flush()?;
        }
        Ok(())
    }

    /// Runs each stage back to back for at least `time`, unrecorded; outputs are from the last
    /// repeat. The L2 cache is not flushed, as the energy of flushes is not the stage's.
    pub fn steady(&mut self, time: Duration) -> Result<Vec<Steady>> {
        let recorder = self.recorder.clone();
        recorder.without_recording(|| {
            let prefill = self.repeat_for(time, "prefill", |session| {
                session.program.clear()?;
                session.program.prefill()?;
                session.device.synchronize()
            })?;
            let steps = if self.program.has_steps() { self.max_new_tokens } else { 0 };
            if steps == 0 {
                return Ok(vec![prefill]);
            }
            let prompt = self.program.cursor().positions().to_vec();
            let decode = self.repeat_for(time, "decode_all", |session| {
                session.program.rewind(&prompt)?;
                session.decode(steps, |_| Ok(()))
            })?;
            Ok(vec![prefill, decode])
        })
    }

    /// Repeats `once` for at least `time`.
    fn repeat_for(
        &mut self,
        time: Duration,
        stage: &str,
        mut once: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<Steady> {
        let start_ns = now_ns();
        let mut steady =
            Steady { stage: stage.to_owned(), start_ns, end_ns: start_ns, instances: 0 };
        while i128::from(steady.end_ns - start_ns) < time.as_nanos() as i128 {
            once(self)?;
            (steady.end_ns, steady.instances) = (now_ns(), steady.instances + 1);
        }
        Ok(steady)
    }

    /// Computes one more token, by the graph if there is one.
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

/// Graphs do not exist without a GPU.
#[cfg(not(feature = "cuda"))]
pub enum StepGraph {}

/// A captured decode step.
#[cfg(feature = "cuda")]
pub struct StepGraph {
    graph: crate::gpu::CapturedGraph,
    captured: crate::record::CapturedCalls,
    /// Tokens read before the captured step.
    tokens: usize,
}

#[cfg(feature = "cuda")]
impl Session {
    /// Captures a decode step in the range `capture`. The operators' ranges are open while their
    /// kernels are captured, so that nodes of the graph are attributed to operators.
    pub fn capture(&mut self) -> Result<()> {
        let Device::Cuda(device) = &self.device else { return Ok(()) };
        let Self { program, recorder, .. } = self;
        program.clear()?;
        // One eager step first: lazy loading of kernels cannot be captured.
        recorder.without_recording(|| program.step())?;
        let tokens = program.cursor().tokens();
        let _capture = recorder.range(llmprof_core::trace::event::CAPTURE_RANGE);
        let (captured, calls) =
            recorder.captured(|| crate::gpu::CapturedGraph::capture(device, || program.step()));
        let (graph, ()) = captured?;
        self.graph = Some(StepGraph { graph, captured: calls, tokens });
        Ok(())
    }
}

#[cfg(feature = "cuda")]
impl StepGraph {
    fn replay(&self, program: &mut dyn Program, recorder: &Recorder) -> Result<()> {
        let cursor = program.cursor();
        recorder.replayed(&self.captured, (cursor.tokens() - self.tokens) as u64);
        self.graph.replay()?;
        cursor.read_one();
        cursor.advance_host();
        program.note_replay();
        Ok(())
    }
}
