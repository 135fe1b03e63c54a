//! Steps of sketched programs whose forwards are known.

use std::collections::BTreeMap;

use llmprof_core::trace::{
    kernel::{Kernel, UNNUMBERED_NODE},
    timeline::{ApiCall, process_of},
};
use proptest::prelude::*;

use super::*;

mod preparation;
mod speculation;

const THREAD: i64 = (7 << 24) | 1;
const LOOKUP: &str = "void at::native::(anonymous namespace)::indexSelectSmallIndex<float>(T1)";
const GATHER: &str = "void at::native::vectorized_gather_kernel<16, long>(char *)";
const ARGMAX: &str = concat!(
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, ",
    "at::native::ArgMaxOps<float>>>(T3)",
);
const ATTENTION: [&str; 2] = ["flash_fwd_splitkv_kernel", "flash_fwd_kernel"];
const PRODUCT: [&str; 2] =
    ["nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "nvjet_sm90_tst_128x128_64x8_2x1_v_bz_TNT"];
const FUSED_LOOKUP: &str = "triton_red_fused__to_copy_add_embedding_mean_mul_pow_rsqrt_0";
const SOFTMAX: &str = "void at::native::(anonymous namespace)::cunn_SoftMaxForwardReg<float>(T1)";
const ADD: &str = "void at::native::vectorized_elementwise_kernel<4, AddFunctor>(int)";

/// Index of a string, which is added if it is new.
pub fn text(trace: &mut Timeline, text: &str) -> u32 {
    let known = trace.strings.iter().position(|it| it == text);
    known.unwrap_or_else(|| {
        trace.strings.push(text.to_owned());
        trace.strings.len() - 1
    }) as u32
}

/// Adds a call of 5 ns; returns its correlation id.
pub fn call(trace: &mut Timeline, name: &str, global_tid: i64, start_ns: i64) -> i64 {
    let (name, correlation_id) = (text(trace, name), trace.cuda_calls.len() as i64 + 1);
    let end_ns = start_ns + 5;
    trace.cuda_calls.push(ApiCall { name, start_ns, end_ns, global_tid, correlation_id });
    correlation_id
}

/// A program that generates, and the bounds of its forwards.
#[derive(Default)]
struct Program {
    trace: Timeline,
    now: i64,
    /// Class, first and last call.
    known: Vec<(StepClass, usize, usize)>,
}

impl Program {
    fn name(&mut self, name: &str) -> u32 {
        text(&mut self.trace, name)
    }

    fn call(&mut self, name: &str) -> i64 {
        self.now += 10;
        call(&mut self.trace, name, THREAD, self.now)
    }

    fn wait(&mut self) {
        self.call("cudaDeviceSynchronize_v3020");
    }

    fn work(&mut self, full: &str, blocks: u32, stream: u32, by: (i64, Option<u64>)) {
        let full_name = self.name(full);
        let name = self.name(llmprof_core::trace::names::base_name(full));
        self.trace.kernels.push(Kernel {
            name,
            full_name,
            device: 0,
            stream,
            start_ns: self.now + 20,
            end_ns: self.now + 28,
            global_pid: process_of(THREAD),
            correlation_id: by.0,
            grid: [blocks, 1, 1],
            block: [64, 1, 1],
            registers: 0,
            shared_memory: 0,
            graph_node: by.1,
        });
    }

    fn kernel(&mut self, full: &str, blocks: u32) {
        let by = self.call("cudaLaunchKernel");
        self.work(full, blocks, 7, (by, None));
    }

    fn noise(&mut self, full: &str) {
        let by = self.call("cudaLaunchKernel");
        self.work(full, 3, 9, (by, None));
    }

    /// Runs `forward` and notes its bounds.
    fn step(&mut self, class: StepClass, forward: impl FnOnce(&mut Self)) {
        let first = self.trace.cuda_calls.len();
        forward(self);
        self.known.push((class, first, self.trace.cuda_calls.len() - 1));
    }

    /// Class and calls of the inferred steps.
    fn found(&self) -> Vec<(StepClass, usize, usize)> {
        let capture = Capture::of(&self.trace);
        let calls: Vec<i64> = capture
            .kernel_joins()
            .filter(|it| it.has_call())
            .map(|it| self.trace.cuda_calls.get(it.call as usize).start_ns)
            .collect();
        let index: BTreeMap<i64, usize> =
            self.trace.cuda_calls.iter().enumerate().map(|(at, it)| (it.start_ns, at)).collect();
        let found = infer(&self.trace).steps.into_iter().filter_map(|it| {
            let inside = calls.iter().filter(|at| (it.start_ns..it.end_ns).contains(at));
            let (first, last) = (inside.clone().min()?, inside.max()?);
            Some((it.class?, index[first], index[last]))
        });
        found.collect()
    }
}

/// A model and the way in which it runs.
#[derive(Debug, Clone)]
struct Shape {
    layers: usize,
    products: u32,
    prompt: u32,
    rounds: Vec<(usize, bool)>,
    has_lookup: bool,
    /// The router of every nth layer chooses as tokens are chosen, and gathers.
    router: Option<usize>,
    /// The host waits for the choice of the router.
    router_waits: bool,
    waits: bool,
    prepares: bool,
    noise: bool,
    is_graph: bool,
    batch: u32,
    /// Prompts and generation use the same kernel of attention.
    one_attention: bool,
}

impl Shape {
    fn forward(&self, program: &mut Program, rows: u32, length: u32) {
        let many = usize::from(rows > 16);
        if self.has_lookup {
            match many {
                0 => program.kernel(LOOKUP, 10 * rows),
                _ => program.kernel(GATHER, rows),
            }
        }
        program.kernel(ADD, rows);
        for layer in 0..self.layers {
            for product in 0..self.products {
                program.kernel(PRODUCT[many], 20 + product);
            }
            // The geometry of attention depends on the length of the context.
            let attention = if self.one_attention { 0 } else { many };
            program.kernel(ATTENTION[attention], 4 + length / 3);
            program.kernel(ADD, rows);
            if self.router.is_some_and(|every| layer % every == every - 1) {
                program.kernel(PRODUCT[many], 2);
                program.kernel(ARGMAX, 1);
                if self.router_waits {
                    program.wait();
                }
                program.kernel(GATHER, rows);
                program.kernel(PRODUCT[many], 9);
            }
            if self.noise {
                program.noise(ARGMAX);
            }
        }
        program.kernel(PRODUCT[0], 500);
        program.kernel(ARGMAX, 2);
    }

    /// Replays the layers, after a lookup inside the graph if `has_lookup`.
    fn replay(&self, program: &mut Program, node: u64, has_lookup: bool) {
        let by = program.call("cudaGraphLaunch_v10000");
        if has_lookup {
            program.work(FUSED_LOOKUP, 2, 7, (by, Some((node << 32) | 99)));
        }
        for layer in 0..self.layers as u64 {
            program.now += 30;
            program.work(PRODUCT[0], 20, 7, (by, Some((node << 32) | (2 * layer))));
            program.work(ATTENTION[0], 4, 7, (by, Some((node << 32) | (2 * layer + 1))));
        }
    }

    fn program(&self) -> Program {
        let mut program = Program::default();
        (0..3).for_each(|_| program.kernel(ADD, 9));
        program.wait();
        for (steps, again) in &self.rounds {
            let prompt = if *again { self.prompt } else { self.prompt + 7 };
            program.step(StepClass::Prefill, |program| self.forward(program, prompt, prompt));
            if self.is_graph {
                program.wait();
            }
            for step in 0..*steps {
                if self.waits && !self.is_graph {
                    program.wait();
                }
                if self.prepares && !self.is_graph {
                    program.kernel(ADD, 1);
                }
                program.step(StepClass::Decode, |program| match self.is_graph {
                    true => self.replay(program, 3, false),
                    false => self.forward(program, self.batch, prompt + step as u32),
                });
            }
            program.wait();
        }
        program
    }
}

prop_compose! {
    fn shape()(
        layers in 1usize..7, products in 1u32..5, prompt in prop_oneof![13u32..30, 17u32..900],
        rounds in prop::collection::vec((0usize..7, any::<bool>()), 1..4),
        has_lookup in prop::bool::weighted(0.8), router in prop::option::weighted(0.3, 1usize..4),
        // A prompt of as many tokens as sequences generate launches the kernels of decode.
        flags in any::<[bool; 6]>(), batch in 1u32..12
    ) -> Shape {
        let [waits, prepares, noise, is_graph, router_waits, one_attention] = flags;
        Shape {
            layers, products, prompt, rounds, has_lookup, router, waits, prepares, noise,
            is_graph, batch, router_waits, one_attention,
        }
    }
}

proptest! {
    #[test]
    fn no_step_of_any_program_has_a_wrong_boundary_or_class(shape in shape()) {
        let program = shape.program();
        for found in program.found() {
            prop_assert!(program.known.contains(&found), "{found:?} of {:?}", program.known);
        }
    }

    #[test]
    fn all_steps_with_evidence_are_found(mut shape in shape()) {
        (shape.has_lookup, shape.router, shape.layers) = (true, None, shape.layers.max(2));
        shape.one_attention = false;
        shape.rounds = shape.rounds.iter().map(|(steps, again)| (steps + 2, *again)).collect();
        // The first lookup needs another forward that starts alike.
        shape.rounds.push((2, true));
        shape.prompt = shape.prompt.max(17);
        // Few steps of many sequences may be short prompts.
        shape.batch = shape.batch.min(4);
        // A layer of one product has too few to show the rows of a graph.
        shape.layers = shape.layers.max(4);
        let program = shape.program();
        prop_assert_eq!(program.found(), program.known);
    }
}

fn decoder() -> Shape {
    Shape {
        layers: 4,
        products: 3,
        prompt: 100,
        rounds: vec![(4, true), (4, true)],
        has_lookup: true,
        router: None,
        router_waits: false,
        waits: false,
        prepares: false,
        noise: false,
        is_graph: false,
        batch: 1,
        one_attention: false,
    }
}

#[test]
fn kernels_of_an_engine_that_batches_prompts_with_generation_are_no_prefill() {
    let mut program = decoder().program();
    let all = program.found();
    program.kernel("void vllm::reshape_and_cache_flash_kernel<float>(T1)", 1);
    let decode: Vec<_> = all.iter().copied().filter(|it| it.0 == StepClass::Decode).collect();
    assert_eq!((program.found(), all.len()), (decode, 10));
    let reasons = infer(&program.trace).unclear;
    assert_eq!(reasons.get(classes::CONTINUOUS), Some(&2));
}

#[test]
fn routers_that_choose_as_tokens_are_chosen_leave_no_step() {
    let program = Shape { router: Some(2), layers: 6, ..decoder() }.program();
    assert_eq!(program.found(), []);
    assert!(!infer(&program.trace).unclear.is_empty());
}

#[test]
fn a_capture_with_stages_has_no_inferred_steps() {
    let mut program = decoder().program();
    program.trace.ranges.push(llmprof_core::trace::range::Range::new(
        ("", "prefill"),
        (0, Some(5)),
        (THREAD, true),
    ));
    assert_eq!(infer(&program.trace), InferredSteps::default());
}

#[test]
fn a_capture_that_starts_within_a_forward_has_only_the_whole_ones() {
    let whole = decoder().program();
    let mut cut = Program { known: whole.known.clone(), ..Program::default() };
    cut.trace = whole.trace.clone();
    let from = whole.known[0].1 + 6;
    cut.trace.kernels =
        whole.trace.kernels.iter().filter(|it| it.correlation_id > from as i64).collect();
    assert_eq!(cut.found(), whole.known[1..]);
}

#[test]
fn unnumbered_nodes_of_a_graph_are_one_graph() {
    let mut program = Shape { is_graph: true, ..decoder() }.program();
    program.trace.kernels = program.trace.kernels.map(|at, it| {
        it.graph_node = it.graph_node.map(|_| UNNUMBERED_NODE | at as u64);
    });
    assert_eq!(program.found(), program.known);
}

#[test]
fn consecutive_decode_steps_are_one_stage() {
    let program = decoder().program();
    let inferred = infer(&program.trace);
    let stages: Vec<&str> = inferred.stages().into_iter().map(|it| it.0).collect();
    assert_eq!(stages, ["prefill", "decode_all", "prefill", "decode_all"]);
    let evidence = inferred.steps[1].evidence.as_ref();
    assert_eq!(
        evidence,
        "from the lookup indexSelectSmallIndex to the choice of a token, at most 16 rows, 4 alike \
         in a row"
    );
}

#[test]
fn short_prompts_alike_in_a_row_after_a_long_one_are_no_decode() {
    for steps in [0, 2, 9] {
        let rounds = vec![(0, false), (0, true), (steps, true)];
        let program = Shape { prompt: 13, rounds, ..decoder() }.program();
        let found = program.found();
        assert_eq!(found.len(), if steps == 9 { 9 } else { 0 }, "{found:?}");
        assert!(found.iter().all(|it| program.known.contains(it)), "{found:?}");
    }
}

#[test]
fn a_prompt_with_the_attention_of_decode_is_prefill_between_steps_of_one_sequence() {
    let rounds = vec![(9, true), (9, true), (9, true)];
    let shape = Shape { one_attention: true, rounds, ..decoder() };
    let program = shape.program();
    // Before the first prompt other sequences may have generated.
    assert_eq!(program.found(), program.known[1..]);
}

#[test]
fn a_prompt_that_is_read_with_a_step_of_another_sequence_is_no_prefill() {
    let shape = Shape { one_attention: true, ..decoder() };
    let mut program = Program::default();
    for running in 1..4 {
        (0..9).for_each(|at| shape.forward(&mut program, running, 100 + at));
        shape.forward(&mut program, 100 + running, 100);
    }
    (0..9).for_each(|at| shape.forward(&mut program, 4, 110 + at));
    let found = program.found();
    assert!(found.iter().all(|it| it.0 == StepClass::Decode), "{found:?}");
    assert_eq!(found.len(), 36);
}
