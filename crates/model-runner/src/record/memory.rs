//! Device memory of ranges and operators, nested, in a repeat that nothing else records.
//!
//! A counter has one peak since its last reset, so each call resets it, and passes its own peak on
//! to the call around it.

use std::rc::Rc;

use llmprof_core::trace::event::MemoryUse;

use super::{OpName, RecordEntry, Recorder};

/// Bytes in use on a device, with their peak since the last reset.
pub struct MemoryCounter {
    /// Bytes in use now, and at most since the last reset; `None` if the device does not count.
    pub read: Box<dyn Fn() -> Option<(u64, u64)>>,
    pub reset: Box<dyn Fn()>,
}

/// A counter with the calls that are open.
pub(super) struct MemoryCalls {
    counter: MemoryCounter,
    open: Vec<OpenCall>,
}

struct OpenCall {
    before: u64,
    peak: u64,
}

/// Subject of a call.
enum CallOf {
    Range(&'static str),
    Operator(Rc<OpName>),
}

impl MemoryCalls {
    pub fn new(counter: MemoryCounter) -> Self {
        Self { counter, open: Vec::new() }
    }

    /// Bytes in use; their peak since the last call belongs to the innermost open call.
    fn settle(&mut self) -> Option<u64> {
        let (used, peak) = (self.counter.read)()?;
        if let Some(around) = self.open.last_mut() {
            around.peak = around.peak.max(peak);
        }
        (self.counter.reset)();
        Some(used)
    }

    fn enter(&mut self) -> bool {
        let before = self.settle();
        self.open.extend(before.map(|before| OpenCall { before, peak: before }));
        before.is_some()
    }

    /// Bytes before, at most during and after the innermost call.
    fn leave(&mut self) -> Option<(u64, u64, u64)> {
        let after = self.settle();
        let call = self.open.pop()?;
        let peak = call.peak.max(after?);
        if let Some(around) = self.open.last_mut() {
            around.peak = around.peak.max(peak);
        }
        Some((call.before, peak, after?))
    }
}

/// An open call; its memory is recorded when it drops.
pub struct MemoryGuard {
    recorder: Recorder,
    of: CallOf,
}

impl Recorder {
    /// Records the memory of ranges and operators by `counter` while `compute` runs.
    pub fn with_memory<R>(&self, counter: MemoryCounter, compute: impl FnOnce() -> R) -> R {
        self.0.memory.replace(Some(MemoryCalls::new(counter)));
        let computed = compute();
        self.0.memory.replace(None);
        computed
    }

    pub(super) fn memory_of_range(&self, name: &'static str) -> Option<MemoryGuard> {
        self.memory_of(|| CallOf::Range(name))
    }

    pub(super) fn memory_of_operator(&self, name: &Rc<OpName>) -> Option<MemoryGuard> {
        self.memory_of(|| CallOf::Operator(name.clone()))
    }

    fn memory_of(&self, of: impl FnOnce() -> CallOf) -> Option<MemoryGuard> {
        let counted = self.0.memory.borrow_mut().as_mut().is_some_and(MemoryCalls::enter);
        counted.then(|| MemoryGuard { recorder: self.clone(), of: of() })
    }
}

impl Drop for MemoryGuard {
    fn drop(&mut self) {
        let inner = &*self.recorder.0;
        let left = inner.memory.borrow_mut().as_mut().and_then(MemoryCalls::leave);
        let Some((before_bytes, peak_bytes, after_bytes)) = left else { return };
        let (stage, path, op) = match &self.of {
            CallOf::Range(name) => (*name, String::new(), String::new()),
            CallOf::Operator(name) => (inner.stage.get(), name.path.clone(), name.kind.to_owned()),
        };
        let stage = stage.to_owned();
        let memory = MemoryUse { stage, path, op, before_bytes, peak_bytes, after_bytes };
        inner.entries.borrow_mut().push(RecordEntry::Memory(memory));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use candle_core::{DType, Device, Result, Tensor};
    use llmprof_core::trace::event::Event;

    use super::*;

    /// A counter that the test moves.
    #[derive(Clone, Default)]
    struct Bytes(Rc<Cell<(u64, u64)>>);

    impl Bytes {
        fn add(&self, bytes: i64) {
            let used = self.0.get().0.saturating_add_signed(bytes);
            self.0.set((used, self.0.get().1.max(used)));
        }

        fn counter(&self) -> MemoryCounter {
            let (read, reset) = (self.clone(), self.clone());
            MemoryCounter {
                read: Box::new(move || Some(read.0.get())),
                reset: Box::new(move || reset.0.set((reset.0.get().0, reset.0.get().0))),
            }
        }
    }

    #[test]
    fn a_peak_belongs_to_the_call_and_to_all_calls_around_it() -> Result<()> {
        let (recorder, bytes) = (Recorder::silent(), Bytes::default());
        let (layer, matmul) =
            (recorder.operator("layer", "module"), recorder.operator("layer.q", "linear"));
        bytes.add(100);
        let compute = || -> Result<()> {
            let _prefill = recorder.range("prefill");
            bytes.add(40);
            bytes.add(-30);
            let _layer = layer.enter();
            matmul.call(&[], 0, || {
                bytes.add(50);
                bytes.add(-45);
                Tensor::zeros(1, DType::F32, &Device::Cpu)
            })?;
            bytes.add(7);
            Ok(())
        };
        recorder.without_recording(|| recorder.with_memory(bytes.counter(), compute))?;
        // After it, nothing is recorded.
        recorder.without_recording(|| drop(recorder.range("prefill")));
        let found: Vec<_> = recorder
            .drain()
            .into_iter()
            .map(|event| match event {
                Event::Memory(it) => (it.path, it.before_bytes, it.peak_bytes, it.after_bytes),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            found,
            [
                ("layer.q".into(), 110, 160, 115),
                ("layer".into(), 110, 160, 122),
                (String::new(), 100, 160, 122),
            ]
        );
        Ok(())
    }

    #[test]
    fn a_device_that_does_not_count_has_no_records() {
        let recorder = Recorder::silent();
        let counter = MemoryCounter { read: Box::new(|| None), reset: Box::new(|| ()) };
        recorder.with_memory(counter, || drop(recorder.range("prefill")));
        assert!(!recorder.drain().iter().any(|event| matches!(event, Event::Memory(_))));
    }
}
