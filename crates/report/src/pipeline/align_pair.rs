//! Reads two captures and aligns them: all of `llmprof align`, and the service's alignments.
//!
//! Needs no GPU, no database and no server. It blocks: an export may hold millions of rows.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use llmprof_analyze::{
    align::{Alignment, AlignmentSide, align, settings::Question},
    analyze,
    parse::{self, ParseError},
    power::StagePower,
};
use llmprof_core::{
    layout,
    trace::{
        Trace,
        event::Event,
        stage::{StageRules, UnknownRange},
        timeline::Timeline,
    },
};

use crate::align::AlignmentReport;

const EXPORT: &str = layout::NSYS_EXPORT;

#[derive(Debug, thiserror::Error)]
pub enum PairError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: Box<ParseError> },
    #[error(
        "{} has neither {EXPORT} nor {}; align a run with an nsys step, or a capture",
        path.display(), layout::imported_trace(1)
    )]
    NoCapture { path: PathBuf },
    #[error("a stage rule matches neither capture")]
    Rules { source: UnknownRange },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// Aligns the runs or captures at `mock` and `e2e`, each with the name that reports give it.
pub fn compare(
    mock: (&str, &Path),
    e2e: (&str, &Path),
    rules: &StageRules,
    question: &Question,
) -> Result<Alignment, PairError> {
    let (mock, e2e) = std::thread::scope(|scope| {
        let first = scope.spawn(|| CapturedSide::read(mock.0, mock.1, rules.clone()));
        let second = CapturedSide::read(e2e.0, e2e.1, rules.clone());
        (first.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), second)
    });
    let (mock, e2e) = (mock?, e2e?);
    // One side may lack a range; a name that both lack is mistyped.
    let both = mock.nsys.check_rules(rules).or_else(|_| e2e.nsys.check_rules(rules));
    both.map_err(|source| PairError::Rules { source })?;
    let stage = question.stage.as_deref();
    Ok(align(&mock.side(stage), &e2e.side(stage), question))
}

/// Writes an alignment into `dir`, as `STEM.md`, `STEM.json` and `STEM.html`.
pub fn write(alignment: &Alignment, dir: &Path, stem: &str) -> Result<(), PairError> {
    let report = AlignmentReport(alignment);
    for (form, text) in
        [("md", report.markdown()), ("json", report.json()), ("html", report.html())]
    {
        let path = dir.join(format!("{stem}.{form}"));
        fs::write(&path, text).map_err(|source| PairError::Write { path, source })?;
    }
    Ok(())
}

/// One side of an alignment.
pub struct CapturedSide {
    name: String,
    nsys: Timeline,
    events: Vec<Event>,
    power: Vec<StagePower>,
}

impl CapturedSide {
    /// Reads the folder of a run, an export of nsys, or a trace by the profiler of PyTorch.
    pub fn read(name: &str, path: &Path, rules: StageRules) -> Result<Self, PairError> {
        if path.is_dir() {
            return Self::of_run(name, path, None, rules);
        }
        let nsys = parse::timeline(&[path.to_owned()]).map_err(|error| cannot_read(path, error))?;
        let nsys = nsys.with_rules(rules);
        Ok(Self { name: name.to_owned(), nsys, events: vec![], power: vec![] })
    }

    /// Reads the folder of a run, whose nsys export is not parsed again if `timeline` has it.
    pub fn of_run(
        name: &str,
        dir: &Path,
        timeline: Option<Timeline>,
        rules: StageRules,
    ) -> Result<Self, PairError> {
        let own = parse::stored::resolved(dir);
        let mut trace: Trace =
            parse::read_parsed(&own, timeline).map_err(|error| cannot_read(dir, error))?;
        let Some(nsys) = trace.timeline.take() else {
            return Err(PairError::NoCapture { path: dir.to_owned() });
        };
        let power = analyze(&trace, None, None).power.map_or(vec![], |it| it.stages);
        let events = if trace.traced.is_empty() { trace.baseline } else { trace.traced };
        Ok(Self { name: name.to_owned(), nsys: nsys.with_rules(rules), events, power })
    }

    /// The capture, for other uses.
    pub fn into_timeline(self) -> Timeline {
        self.nsys
    }

    /// The input of an alignment in `stage`.
    pub fn side(&self, stage: Option<&str>) -> AlignmentSide<'_> {
        let power = self.power.iter().find(|it| Some(it.stage.as_str()) == stage);
        AlignmentSide { name: &self.name, trace: &self.nsys, events: &self.events, power }
    }
}

fn cannot_read(path: &Path, error: ParseError) -> PairError {
    PairError::Read { path: path.to_owned(), source: Box::new(error) }
}
