//! Steps of a sketched engine whose schedule is known.

use llmprof_core::trace::{
    engine_steps::StepClass,
    inferred_steps::InferredStep,
    kernel::Kernel,
    names::base_name,
    timeline::{ApiCall, CopyKind, GraphLaunch, MemoryOp, Timeline, process_of},
};
use proptest::prelude::*;

use super::super::{
    classes::CONTINUOUS,
    infer,
    tests::{call, text},
};

const GATHER: &str = "void at::native::vectorized_gather_kernel<16, long>(char *)";
const SMALL: &str = "void at::native::(anonymous namespace)::indexSelectSmallIndex<float>(T1)";
const CACHE: &str = "store_kvcache_kernel";
const ATTENTION: &str = "flash_fwd_splitkv_kernel";
const PRODUCT: &str = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT";
const ADD: &str = "void at::native::vectorized_elementwise_kernel<4, AddFunctor>(int)";
const ARGMAX: &str = "triton_red_fused__softmax__to_copy_argmax_div_exponential_0";
const LAYERS: u64 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Graphs {
    None,
    Whole,
    ByNode,
}

/// Class, start, requests and tokens of prompts, and requests that generate.
type Known = (Option<StepClass>, i64, Option<u64>, Option<u64>, Option<u64>);

/// An engine, and what it ran.
struct Engine {
    trace: Timeline,
    now: i64,
    graphs: Graphs,
    /// The first one reads the chosen tokens.
    ranks: i64,
    /// The host waits for the copy by a call of its own.
    waits: bool,
    /// It writes to a paged cache by a kernel that is known.
    has_cache: bool,
    known: Vec<Known>,
}

impl Engine {
    fn new(graphs: Graphs, ranks: i64, waits: bool) -> Self {
        let (trace, known) = Default::default();
        Self { trace, now: 0, graphs, ranks, waits, has_cache: true, known }
    }

    fn name(&mut self, name: &str) -> u32 {
        text(&mut self.trace, name)
    }

    fn thread(rank: i64) -> i64 {
        ((7 + rank) << 24) | 1
    }

    fn call(&mut self, rank: i64, name: &str) -> i64 {
        self.now += 10;
        call(&mut self.trace, name, Self::thread(rank), self.now)
    }

    fn work(&mut self, rank: i64, name: &str, rows: u64, by: (i64, Option<u64>)) {
        let (full_name, name) = (self.name(name), self.name(base_name(name)));
        self.trace.kernels.push(Kernel {
            name,
            full_name,
            device: rank as u32,
            stream: 7,
            start_ns: self.now + 2,
            end_ns: self.now + 8,
            global_pid: process_of(Self::thread(rank)),
            correlation_id: by.0,
            grid: [rows as u32, 1, 1],
            block: [64, 1, 1],
            registers: 0,
            shared_memory: 0,
            graph_node: by.1,
        });
    }

    fn kernel(&mut self, rank: i64, name: &str, rows: u64) {
        let by = self.call(rank, "cudaLaunchKernel");
        self.work(rank, name, rows, (by, None));
    }

    fn copy(&mut self, rank: i64, kind: CopyKind, bytes: u64) {
        let correlation_id = self.call(rank, "cudaMemcpyAsync");
        let start_ns = self.now + 1;
        let is_read = kind == CopyKind::DeviceToHost;
        let end_ns = if is_read && self.waits { start_ns + 6 } else { start_ns + 2 };
        self.trace.copies.push(MemoryOp {
            start_ns,
            end_ns,
            bytes,
            kind,
            device: rank as u32,
            stream: None,
            global_pid: process_of(Self::thread(rank)),
            correlation_id,
            graph_node: None,
            is_pageable: None,
        });
        if is_read && self.waits {
            self.call(rank, "cudaStreamSynchronize");
        }
    }

    /// Uploads the tokens, their positions, and one number for each request.
    fn uploads(&mut self, rank: i64, requests: u64, tokens: u64) {
        for bytes in [8 * tokens, 8 * tokens, 4 * requests] {
            self.copy(rank, CopyKind::HostToDevice, bytes);
        }
    }

    fn layers(&mut self, rank: i64, rows: u64, by: Option<(i64, u64)>) {
        let cache = if self.has_cache { CACHE } else { ADD };
        for layer in 0..LAYERS {
            for (at, name) in [PRODUCT, cache, ATTENTION, ADD].into_iter().enumerate() {
                match by {
                    None => self.kernel(rank, name, rows),
                    Some((by, graph)) => {
                        let node = (graph << 32) | (4 * layer + at as u64);
                        self.work(rank, name, rows, (by, Some(node)));
                    }
                }
            }
        }
    }

    /// Launches the layers of one rank; returns the start of the first call.
    fn forward(&mut self, rank: i64, requests: u64, tokens: u64, is_graph: bool) -> i64 {
        self.uploads(rank, requests, tokens);
        let padded = tokens.next_multiple_of(8);
        if is_graph && self.graphs != Graphs::None {
            self.kernel(rank, ADD, requests);
            let by = self.call(rank, "cudaGraphLaunch");
            let start = self.now;
            if self.graphs == Graphs::ByNode {
                self.layers(rank, padded, Some((by, padded)));
            } else {
                self.trace.graphs.push(GraphLaunch {
                    start_ns: self.now + 2,
                    end_ns: self.now + 8,
                    device: rank as u32,
                    stream: 7,
                    global_pid: process_of(Self::thread(rank)),
                    correlation_id: by,
                    graph: Some(padded),
                });
            }
            self.kernel(rank, PRODUCT, 50);
            return start;
        }
        match tokens {
            ..=16 => self.kernel(rank, SMALL, 7),
            _ => self.kernel(rank, GATHER, tokens),
        }
        let start = self.now;
        self.layers(rank, tokens, None);
        if tokens > requests {
            self.kernel(rank, GATHER, requests);
        }
        self.kernel(rank, PRODUCT, 50);
        start
    }

    /// Runs a step and notes it.
    fn step(&mut self, class: StepClass, requests: u64, tokens: u64, is_graph: bool) {
        let mut start = 0;
        for rank in (0..self.ranks).rev() {
            start = self.forward(rank, requests, tokens, is_graph);
        }
        self.kernel(0, ARGMAX, requests);
        self.copy(0, CopyKind::DeviceToHost, 8 * requests);
        let (requests, tokens) = (Some(requests), Some(tokens));
        self.known.push(match class {
            StepClass::Prefill => (Some(class), start, requests, tokens, None),
            StepClass::Decode => (Some(class), start, None, None, requests),
            _ => (Some(class), start, None, None, None),
        });
    }

    fn prompts(&mut self, requests: u64, tokens: u64) {
        self.step(StepClass::Prefill, requests, tokens, false);
    }

    fn generate(&mut self, batches: &[u64]) {
        for batch in batches {
            self.step(StepClass::Decode, *batch, *batch, true);
        }
    }

    /// Inferred steps of one rank.
    fn steps(&self, rank: i64) -> Vec<InferredStep> {
        let steps = infer(&self.trace).steps.into_iter();
        steps.filter(|it| it.global_tid == Self::thread(rank)).collect()
    }

    fn found(&self) -> Vec<Known> {
        self.steps(0).iter().map(known).collect()
    }
}

fn known(it: &InferredStep) -> Known {
    (it.class, it.start_ns, it.prefill_requests, it.prefill_tokens, it.decode_requests)
}

/// An engine that read a warm-up prompt, and then two turns of requests.
fn engine(graphs: Graphs, ranks: i64, waits: bool) -> Engine {
    let mut engine = Engine::new(graphs, ranks, waits);
    engine.prompts(4, 400);
    engine.known.clear();
    for _ in 0..2 {
        engine.prompts(17, 900);
        engine.prompts(7, 300);
        engine.generate(&[24, 24, 23, 20, 9]);
        engine.prompts(2, 30);
        engine.generate(&[11, 11, 6, 2, 1]);
    }
    engine
}

#[test]
fn all_steps_of_an_engine_are_found_with_their_batches() {
    for graphs in [Graphs::None, Graphs::Whole, Graphs::ByNode] {
        for waits in [false, true] {
            let engine = engine(graphs, 1, waits);
            assert_eq!(engine.found(), engine.known, "{graphs:?} {waits}");
        }
    }
}

#[test]
fn ranks_that_read_no_tokens_have_the_steps_of_the_one_that_does() {
    for graphs in [Graphs::None, Graphs::Whole, Graphs::ByNode] {
        let engine = engine(graphs, 3, false);
        let counts = |rank: i64| -> Vec<Known> {
            let counts = |it| {
                let (class, _, requests, tokens, batch) = known(it);
                (class, 0, requests, tokens, batch)
            };
            engine.steps(rank).iter().map(counts).collect()
        };
        assert_eq!(engine.found(), engine.known, "{graphs:?}");
        assert_eq!((counts(1), counts(2)), (counts(0), counts(0)), "{graphs:?}");
    }
}

#[test]
fn a_rank_that_misses_a_forward_has_no_steps() {
    let mut engine = engine(Graphs::Whole, 2, false);
    let middle = engine.trace.graphs.len() / 2;
    assert_eq!(engine.trace.graphs.remove(middle).device, 1);
    assert_eq!((engine.found(), engine.steps(1).len()), (engine.known.clone(), 0));
}

#[test]
fn a_graph_that_always_chooses_as_many_tokens_may_be_padded() {
    let mut engine = Engine::new(Graphs::Whole, 1, false);
    engine.prompts(17, 900);
    engine.prompts(7, 300);
    engine.generate(&[24, 24, 16, 16, 8]);
    let batches: Vec<_> = engine.found().iter().map(|it| (it.0, it.4)).collect();
    let decode = (Some(StepClass::Decode), None);
    let prefill = (Some(StepClass::Prefill), None);
    assert_eq!(batches, [[prefill; 2].to_vec(), [decode; 5].to_vec()].concat());
}

#[test]
fn graphs_without_ids_may_be_padded() {
    let mut engine = engine(Graphs::Whole, 1, false);
    engine.trace.graphs.iter_mut().for_each(|it| it.graph = None);
    let found = engine.found();
    assert_eq!(found.len(), engine.known.len());
    assert!(found.iter().all(|it| it.4.is_none()), "{found:?}");
}

#[test]
fn an_engine_that_may_read_prompts_with_generation_has_decode_steps_alone() {
    let mut engine = Engine::new(Graphs::Whole, 1, false);
    engine.prompts(5, 900);
    engine.generate(&[5, 4]);
    engine.step(StepClass::Mixed, 6, 90, false);
    engine.generate(&[6, 3]);
    engine.step(StepClass::Mixed, 5, 20, true);
    engine.generate(&[5]);
    engine.known.retain(|it| it.0 == Some(StepClass::Decode));
    assert_eq!(engine.found(), engine.known);
}

#[test]
fn an_engine_of_unknown_kernels_has_decode_steps_and_other_steps_without_a_class() {
    let mut engine = Engine { has_cache: false, ..Engine::new(Graphs::None, 1, false) };
    engine.step(StepClass::Mixed, 24, 8000, false);
    engine.generate(&[24, 24, 24, 1]);
    engine.known[0].0 = None;
    assert_eq!(engine.found(), engine.known);
    assert_eq!(infer(&engine.trace).unclear[CONTINUOUS], 1);
}

#[test]
fn more_requests_than_were_read_are_no_steps() {
    let mut engine = engine(Graphs::Whole, 1, false);
    engine.generate(&[9]);
    assert_eq!(engine.found(), []);
    assert!(infer(&engine.trace).unclear.contains_key(super::proof::GROWTH));
}

/// A request: steps until it arrives, tokens of its prompt, and tokens to generate.
type Request = (usize, u64, u64);

/// Runs requests to their end, prompts apart from generation or mixed with it.
fn run(engine: &mut Engine, requests: &[Request], is_mixed: bool) {
    let mut waiting: Vec<Request> = requests.to_vec();
    let mut running: Vec<u64> = Vec::new();
    for now in 0.. {
        if waiting.is_empty() && running.is_empty() {
            return;
        }
        let (ready, later): (Vec<Request>, _) = waiting.into_iter().partition(|it| it.0 <= now);
        waiting = later;
        let tokens: u64 = ready.iter().map(|it| it.1).sum();
        let (new, old) = (ready.len() as u64, running.len() as u64);
        let is_generating = is_mixed || new == 0;
        if is_mixed && new > 0 && old > 0 {
            engine.step(StepClass::Mixed, new + old, tokens + old, tokens < 40);
        } else if new > 0 {
            engine.prompts(new, tokens);
        } else if old > 0 {
            engine.generate(&[old]);
        }
        if is_generating {
            running.iter_mut().for_each(|left| *left -= 1);
        }
        running.extend(ready.iter().map(|it| it.2));
        running.retain(|left| *left > 0);
    }
}

proptest! {
    #[test]
    fn no_step_of_any_schedule_is_wrong(
        requests in prop::collection::vec((0usize..30, 2u64..60, 0u64..12), 1..40),
        graphs in prop::sample::select(vec![Graphs::None, Graphs::Whole, Graphs::ByNode]),
        ranks in 1i64..3, flags in any::<[bool; 3]>()
    ) {
        let [waits, is_mixed, has_cache] = flags;
        let mut engine = Engine { has_cache, ..Engine::new(graphs, ranks, waits) };
        run(&mut engine, &requests, is_mixed);
        let graph = engine.trace.strings.iter().position(|it| it == "cudaGraphLaunch");
        let launches = |it: &InferredStep| {
            let times = it.start_ns..it.end_ns;
            let is_graph = |call: &ApiCall| {
                Some(call.name as usize) == graph
                    && call.global_tid == it.global_tid
                    && times.contains(&call.start_ns)
            };
            engine.trace.cuda_calls.iter().filter(is_graph).count()
        };
        for rank in 0..ranks {
            let steps = engine.steps(rank);
            for pair in steps.windows(2) {
                prop_assert!(pair[0].end_ns <= pair[1].start_ns, "{pair:?}");
            }
            for it in &steps {
                prop_assert!(launches(it) <= 1, "{it:?}");
            }
        }
        // Other steps are of the launches, which show no batch.
        let steps = engine.steps(0);
        for found in steps.iter().filter(|it| it.is_scheduled).map(known) {
            let is_right = |it: &Known| {
                (found.0.is_none() || it.0 == found.0)
                    && it.1 == found.1
                    && (found.0.is_none() || (it.2, it.3) == (found.2, found.3))
                    && (found.4.is_none() || found.4 == it.4)
            };
            prop_assert!(engine.known.iter().any(is_right), "{found:?} of {:?}", engine.known);
        }
    }
}
