//! `llmprof align`: whether a mock layer launches what the whole model launches, from two captures.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use llmprof::{
    analyze::{
        align::{
            Side, Verdict, align,
            settings::{Operation, Question, Thresholds, waivers},
        },
        analyze,
        power::StagePower,
    },
    artifact::layout,
    parse,
    report::align::previous,
    trace::{
        Trace,
        event::Event,
        nsys::NsysTrace,
        stage::{StageRule, StageRules},
    },
};

use super::Format;

/// What the command ends with when it was asked what it cannot answer.
pub const BAD_INPUT: u8 = 3;

/// Tell whether a mock layer launches the kernels that the same layer launches inside the whole model
///
/// Each side is an SQLite export of nsys, or the folder of a run. Without --range, --operator and --kernels the mock's sequence of kernels
/// is looked for in the other timeline. Exits with 0 for pass, 1 for fail, 2 for inconclusive, 3 for bad input or arguments.
#[derive(Debug, Args)]
pub struct Options {
    /// Capture or run of the mock layer
    #[arg(long, value_name = "PATH")]
    mock: PathBuf,
    /// Capture or run of the whole model
    #[arg(long, value_name = "PATH")]
    e2e: PathBuf,
    /// The operation is what ranges of this name launch; `*` stands for anything
    #[arg(long, value_name = "RANGE[@DOMAIN]", conflicts_with_all = ["operator", "kernels"])]
    range: Option<String>,
    /// The operation is what the operator at this module path launches: `decoder.layers.*.self_attn`
    #[arg(long, value_name = "PATH", conflicts_with = "kernels")]
    operator: Option<String>,
    /// The operation is kernels with this in their names; may be given again
    #[arg(long, value_name = "PATTERN")]
    kernels: Vec<String>,
    /// Stage that counts (prefill, decode), or which ranges are one: `prefill=forward@vllm`; all but the warm-up without
    #[arg(long, value_name = "NAME[=RANGE[@DOMAIN]]")]
    stage: Option<String>,
    /// Look only at what lies in ranges of this name; may be given again
    #[arg(long, value_name = "RANGE")]
    within: Vec<String>,
    /// Leave out what lies in ranges of this name; may be given again
    #[arg(long, value_name = "RANGE")]
    without: Vec<String>,
    /// Thresholds in place of those of conf/alignment.toml
    #[arg(long, value_name = "TOML")]
    thresholds: Option<PathBuf>,
    /// Known differences: `[[waiver]]` with pattern, reason, impact and expires
    #[arg(long, value_name = "TOML")]
    waivers: Option<PathBuf>,
    /// The JSON of an earlier alignment of the pair, to tell what changed
    #[arg(long, value_name = "JSON")]
    previous: Option<PathBuf>,
    /// Write alignment.json, .md and .html here
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Md)]
    format: Format,
}

/// The stage that is all of what `--within` chose.
const ALL: &str = "all within";

/// Aligns, prints, and says how it came out.
pub fn run(options: &Options) -> ExitCode {
    match carry_out(options) {
        Ok(Verdict::Pass | Verdict::Warn) => ExitCode::SUCCESS,
        Ok(Verdict::Fail) => ExitCode::from(1),
        Ok(Verdict::Inconclusive) => ExitCode::from(2),
        Err(error) => {
            eprintln!("llmprof: {error:#}");
            ExitCode::from(BAD_INPUT)
        }
    }
}

fn carry_out(options: &Options) -> Result<Verdict> {
    let (stage, rules) = stage(options)?;
    let question = Question {
        operation: operation(options)?,
        stage,
        thresholds: match &options.thresholds {
            Some(path) => Thresholds::with(&text(path)?).with_context(|| format!("cannot use {}", path.display()))?,
            None => Thresholds::default(),
        },
        waivers: match &options.waivers {
            Some(path) => waivers(&text(path)?).with_context(|| format!("cannot use {}", path.display()))?,
            None => vec![],
        },
        today: jiff::Timestamp::now().to_string().chars().take(10).collect(),
    };
    let before = options
        .previous
        .as_ref()
        .map(|path| previous(text(path)?.as_bytes()).with_context(|| format!("{} is no alignment", path.display())));
    let before = before.transpose()?;
    let (mock, e2e) = std::thread::scope(|scope| {
        let mock = scope.spawn(|| Read::of(&options.mock, rules.clone()));
        let e2e = Read::of(&options.e2e, rules.clone());
        (mock.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), e2e)
    });
    let (mock, e2e) = (mock?, e2e?);
    let stage = question.stage.as_deref();
    let mut alignment = align(&mock.side(stage), &e2e.side(stage), &question);
    if let Some((verdict, checks)) = before {
        alignment.since(&checks, verdict);
    }
    let forms =
        [("alignment.md", alignment.markdown()), ("alignment.json", alignment.json()), ("alignment.html", alignment.html())];
    if let Some(out) = &options.out {
        fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        for (name, text) in &forms {
            fs::write(out.join(name), text).with_context(|| format!("cannot write {}", out.join(name).display()))?;
        }
    }
    let [md, json, html] = &forms;
    let (_, text) = match options.format {
        Format::Md => md,
        Format::Json => json,
        Format::Html => html,
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(alignment.verdict)
}

fn text(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn stage(options: &Options) -> Result<(Option<String>, StageRules)> {
    let mut more = Vec::new();
    let name = match &options.stage {
        Some(rule) if rule.contains('=') => {
            let rule: StageRule = rule.parse()?;
            more.push(rule.clone());
            Some(rule.stage)
        }
        // What people call it, and what it is called here.
        Some(name) if name == "decode" => Some("decode_all".to_owned()),
        name => name.clone(),
    };
    if name.is_none() && !options.within.is_empty() {
        // Without a stage, all that lies in those ranges is one.
        let rule = |range: &String| StageRule { stage: ALL.to_owned(), range: range.clone(), domain: None };
        more.extend(options.within.iter().map(rule));
        return Ok((Some(ALL.to_owned()), StageRules::with(more, options.within.clone(), options.without.clone())));
    }
    let rules = StageRules::with(more, options.within.clone(), options.without.clone());
    match name {
        Some(name) if !rules.names().contains(&name.as_str()) => {
            bail!("no stage is called {name:?}: say which ranges are it, as {name}=RANGE[@DOMAIN], or use prefill or decode")
        }
        name => Ok((name, rules)),
    }
}

fn operation(options: &Options) -> Result<Operation> {
    let given = options.range.iter().chain(&options.operator).chain(&options.kernels);
    if given.clone().any(|it| it.trim_matches(['*', ' ', '@']).is_empty()) {
        bail!("--range, --operator and --kernels must name something");
    }
    if let Some(range) = &options.range {
        let (name, domain) =
            range.rsplit_once('@').map_or((range.as_str(), None), |(name, domain)| (name, Some(domain.to_owned())));
        return Ok(Operation::Range { name: name.to_owned(), domain });
    }
    if let Some(path) = &options.operator {
        return Ok(Operation::Operator(path.clone()));
    }
    Ok(if options.kernels.is_empty() { Operation::Sequence } else { Operation::Kernels(options.kernels.clone()) })
}

/// One side, read.
struct Read {
    name: String,
    nsys: NsysTrace,
    events: Vec<Event>,
    power: Vec<StagePower>,
}

impl Read {
    fn of(path: &Path, rules: StageRules) -> Result<Self> {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        if !path.is_dir() {
            let nsys = parse::nsys::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            return Ok(Self { name, nsys: NsysTrace { rules, ..nsys }, events: vec![], power: vec![] });
        }
        let mut trace: Trace = parse::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let Some(nsys) = trace.nsys.take() else {
            bail!("{} holds no {}: align a run that was traced, or a capture", path.display(), layout::NSYS_EXPORT);
        };
        let power = analyze(&trace, None, None).power.map_or(vec![], |it| it.stages);
        let events = if trace.traced.is_empty() { trace.baseline } else { trace.traced };
        Ok(Self { name, nsys: NsysTrace { rules, ..nsys }, events, power })
    }

    fn side(&self, stage: Option<&str>) -> Side<'_> {
        let power = self.power.iter().find(|it| Some(it.stage.as_str()) == stage);
        Side { name: &self.name, trace: &self.nsys, events: &self.events, power }
    }
}
