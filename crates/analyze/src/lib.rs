//! Captures of LLM inference, analysed: an export of Nsight Systems, traces by the profiler of
//! PyTorch or pages of Nsight Compute in, an [`Analysis`] out.
//!
//! [`parse`] reads files into a [`Trace`]; it returns an error with the file's name, and never
//! panics. [`analyze()`] is arithmetic on that value: no files, no clock, no failure. Missing data
//! becomes `None` and a [`Finding`], never a guess.
//!
//! [`Trace`]: llmprof_core::trace::Trace
//! [`Finding`]: llmprof_core::domain::finding::Finding
//!
//! ```no_run
//! use llmprof_analyze::{analyze, parse};
//! use llmprof_core::{domain::subject::SubjectKind, trace::Trace};
//!
//! let timeline = parse::timeline(&["trace.json.gz".into()])?;
//! let trace = Trace { subject: SubjectKind::Import, nsys: Some(timeline), ..Trace::default() };
//! let analysis = analyze(&trace, None, None);
//! for kernel in analysis.kernels.measured().take(10) {
//!     println!("{} {:.3} ms {}", kernel.stage, kernel.total_ms, kernel.kernel_name);
//! }
//! # Ok::<(), parse::ParseError>(())
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`parse`] | readers, one folder per format |
//! | [`stages`] | times of stages, their coverage, overhead and repeats |
//! | [`timeline`] | what the devices did: launches, gaps, decode steps, processes, regions |
//! | [`kernels`] | kernels by name and class, their counters, GEMMs, call sites |
//! | [`operators`], [`cost`] | operators, and the FLOPs and bytes of a model |
//! | [`roofline`], [`ledger`] | floors, MFU, and each cause of the time above the floor |
//! | [`refutation`] | proofs that another model ran than the stated one |
//! | [`sampled`], [`power`] | sampled metrics, power and clocks |
//! | [`findings`] | rules, each with its evidence and the time that its advice saves at most |
//! | [`align`], [`compare`], [`series`] | two captures, two runs, many runs |
//! | [`invariants`] | figures that would contradict others, and are removed |

pub mod align;
pub mod collectives;
pub mod compare;
pub mod cost;
pub mod external_capture;
pub mod findings;
pub mod host_cpu;
pub mod invariants;
pub mod kernels;
pub mod ledger;
pub mod limited;
pub mod memory;
pub mod model_work;
pub mod operators;
pub mod parse;
pub mod power;
pub mod refutation;
pub mod requests;
pub mod roofline;
pub mod sampled;
pub mod samples;
pub mod series;
pub mod stages;
pub mod stats;
pub mod step_batches;
pub mod subject;
pub mod sweep;
pub mod timeline;

mod analysis;
mod events;

pub use analysis::{Analysis, analyze};
