//! Two captures, read back and aligned: all of `llmprof align`, and the end of every alignment of the service.
//!
//! Needs no GPU, no database and no server. It blocks: an export may hold millions of rows.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    analyze::{
        align::{Alignment, Side, align, settings::Question},
        analyze,
        power::StagePower,
    },
    artifact::layout,
    parse::{self, ParseError},
    trace::{
        Trace,
        event::Event,
        nsys::NsysTrace,
        stage::{StageRules, UnknownRange},
    },
};

#[derive(Debug, thiserror::Error)]
pub enum PairError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: Box<ParseError> },
    #[error("{} holds no {}: align a run that was traced, or a capture", path.display(), layout::NSYS_EXPORT)]
    NoCapture { path: PathBuf },
    #[error("a rule fits neither capture")]
    Rules { source: UnknownRange },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// Aligns the runs or captures at `mock` and `e2e`, each with the name that reports give it.
pub fn compare(mock: (&str, &Path), e2e: (&str, &Path), rules: &StageRules, question: &Question) -> Result<Alignment, PairError> {
    let (mock, e2e) = std::thread::scope(|scope| {
        let first = scope.spawn(|| Captured::read(mock.0, mock.1, rules.clone()));
        let second = Captured::read(e2e.0, e2e.1, rules.clone());
        (first.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), second)
    });
    let (mock, e2e) = (mock?, e2e?);
    // A side that lacks a range decides nothing; a name that both lack is mistyped.
    let both = mock.nsys.check_rules(rules).or_else(|_| e2e.nsys.check_rules(rules));
    both.map_err(|source| PairError::Rules { source })?;
    let stage = question.stage.as_deref();
    Ok(align(&mock.side(stage), &e2e.side(stage), question))
}

/// Writes an alignment in its three forms into `dir`, as `STEM.md`, `STEM.json` and `STEM.html`.
pub fn write(alignment: &Alignment, dir: &Path, stem: &str) -> Result<(), PairError> {
    for (form, text) in [("md", alignment.markdown()), ("json", alignment.json()), ("html", alignment.html())] {
        let path = dir.join(format!("{stem}.{form}"));
        fs::write(&path, text).map_err(|source| PairError::Write { path, source })?;
    }
    Ok(())
}

/// One side, read.
pub struct Captured {
    name: String,
    nsys: NsysTrace,
    events: Vec<Event>,
    power: Vec<StagePower>,
}

impl Captured {
    /// Reads the folder of a run, or an export of nsys.
    pub fn read(name: &str, path: &Path, rules: StageRules) -> Result<Self, PairError> {
        let (name, failed) = (name.to_owned(), |source| PairError::Read { path: path.to_owned(), source: Box::new(source) });
        if !path.is_dir() {
            let nsys = parse::nsys::read(path).map_err(failed)?;
            return Ok(Self { name, nsys: nsys.with_rules(rules), events: vec![], power: vec![] });
        }
        let mut trace: Trace = parse::read(path).map_err(failed)?;
        let Some(nsys) = trace.nsys.take() else { return Err(PairError::NoCapture { path: path.to_owned() }) };
        let power = analyze(&trace, None, None).power.map_or(vec![], |it| it.stages);
        let events = if trace.traced.is_empty() { trace.baseline } else { trace.traced };
        Ok(Self { name, nsys: nsys.with_rules(rules), events, power })
    }

    /// The side as an alignment sees it.
    pub fn side(&self, stage: Option<&str>) -> Side<'_> {
        let power = self.power.iter().find(|it| Some(it.stage.as_str()) == stage);
        Side { name: &self.name, trace: &self.nsys, events: &self.events, power }
    }
}
