//! Inspection of uploaded files before their import is queued: unpacked, classified and read in a
//! child process, so that a hostile file ends that process and nothing else.

use std::{fs, io, path::Path, sync::Arc, time::Duration};

use llmprof_analyze::parse;
use llmprof_core::domain::{
    ids::RunId,
    import::{CaptureKind, Import},
};
use llmprof_report::pipeline::rules_of;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::limited_child::{LimitedChild, LimitedChildren};
use crate::{
    artifact::{
        import_staging::{
            self, CapturesInspection, InspectedFile, IntakeError, UploadLimits, UploadedFile,
        },
        inputs::staging::{self, InputsInspection, InputsUpload},
        inspection::Inspection,
    },
    collect::process::output::{self, Logs},
    measuring::UPLOAD_WAIT,
};

/// Inspections on their way to their kind's inspectors. The number of waiting ones is bounded by
/// the limits of uploads and of concurrent requests.
const MAX_INSPECTIONS: usize = 16;
/// Inspections at a time, of captures and of inputs: neither waits for the other kind.
const INSPECTORS: usize = 2;
/// Time limit of an inspection.
const TIME_LIMIT: Duration = Duration::from_secs(300);
/// Files of an inspection, in a folder of the upload that is removed afterwards.
const FOLDER: &str = "inspection";
const TASK: &str = "task.json";
const RESULT: &str = "result.json";

/// Input of the child.
#[derive(Debug, Serialize, Deserialize)]
enum InspectionTask {
    Captures(CapturesTask),
    Inputs(InputsUpload),
}

/// Tools of this host that read reports.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct ReportTools {
    pub nsys: bool,
    pub ncu: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct CapturesTask {
    files: Vec<UploadedFile>,
    limits: UploadLimits,
    rules: Import,
    tools: ReportTools,
}

/// Output of the child: the result, or the reason to refuse the files.
#[derive(Debug, Serialize, Deserialize)]
enum InspectionResult<T> {
    Accepted(T),
    TooLarge { max: u64 },
    NoRoom { free: u64, least: u64 },
    Unfit(String),
    NotKept(String),
}

impl<T> From<Result<T, IntakeError>> for InspectionResult<T> {
    fn from(inspected: Result<T, IntakeError>) -> Self {
        match inspected {
            Ok(accepted) => Self::Accepted(accepted),
            Err(IntakeError::TooLarge { max }) => Self::TooLarge { max },
            Err(IntakeError::NoRoom { free, least }) => Self::NoRoom { free, least },
            Err(IntakeError::Unfit(why)) => Self::Unfit(why),
            Err(error) => Self::NotKept(llmprof_core::chain(&error)),
        }
    }
}

impl<T> From<InspectionResult<T>> for Result<T, IntakeError> {
    fn from(result: InspectionResult<T>) -> Self {
        match result {
            InspectionResult::Accepted(accepted) => Ok(accepted),
            InspectionResult::TooLarge { max } => Err(IntakeError::TooLarge { max }),
            InspectionResult::NoRoom { free, least } => Err(IntakeError::NoRoom { free, least }),
            InspectionResult::Unfit(why) => Err(IntakeError::Unfit(why)),
            InspectionResult::NotKept(why) => {
                Err(IntakeError::Keep { source: io::Error::other(why) })
            }
        }
    }
}

/// Children that inspect uploads of one kind, a few at a time.
#[derive(Debug, Clone)]
struct Inspectors {
    children: Arc<LimitedChildren>,
    places: Arc<Semaphore>,
    stop: CancellationToken,
}

/// Starts the task that inspects uploads, a few at a time; it ends with the last sender. `stop`
/// ends the inspections under way.
pub fn start(
    children: LimitedChildren,
    tools: ReportTools,
    stop: CancellationToken,
) -> mpsc::Sender<Inspection> {
    let (sender, mut inspections) = mpsc::channel::<Inspection>(MAX_INSPECTIONS);
    let children =
        Arc::new(LimitedChildren { max_wait: UPLOAD_WAIT.min(children.max_wait), ..children });
    let inspectors = || {
        let (children, places) = (Arc::clone(&children), Arc::new(Semaphore::new(INSPECTORS)));
        Inspectors { children, places, stop: stop.clone() }
    };
    let (of_captures, of_inputs) = (inspectors(), inspectors());
    tokio::spawn(async move {
        while let Some(inspection) = inspections.recv().await {
            match inspection {
                Inspection::Captures(CapturesInspection {
                    folder,
                    files,
                    limits,
                    rules,
                    answer,
                }) => {
                    let task = CapturesTask { files, limits, rules, tools };
                    let task = InspectionTask::Captures(task);
                    of_captures.start(&folder, task, answer);
                }
                Inspection::Inputs(InputsInspection { upload, answer }) => {
                    let folder = upload.folder.clone();
                    of_inputs.start(&folder, InspectionTask::Inputs(upload), answer);
                }
            }
        }
    });
    sender
}

impl Inspectors {
    /// Starts the inspection of the upload in `folder` once there is a place.
    fn start<T: DeserializeOwned + Send + 'static>(
        &self,
        folder: &Path,
        task: InspectionTask,
        mut answer: oneshot::Sender<Result<T, IntakeError>>,
    ) {
        let places = Arc::clone(&self.places);
        let (children, stop) = (Arc::clone(&self.children), self.stop.child_token());
        let folder = folder.join(FOLDER);
        tokio::spawn(async move {
            let in_turn = async {
                let _place = places.acquire().await;
                inspect(&folder, &task, &children, &stop).await
            };
            let inspected = tokio::select! {
                biased;
                inspected = in_turn => inspected,
                // The client is gone, and its files are removed.
                () = answer.closed() => return,
            };
            // The client may be gone.
            let _ = answer.send(inspected);
        });
    }
}

/// Executes an inspection in a child process, with its files in `folder`.
async fn inspect<T: DeserializeOwned>(
    folder: &Path,
    task: &InspectionTask,
    children: &LimitedChildren,
    stop: &CancellationToken,
) -> Result<T, IntakeError> {
    fs::create_dir_all(folder)?;
    // Neither file outlives the upload, so neither is synced.
    fs::write(folder.join(TASK), serde_json::to_vec(task).map_err(io::Error::from)?)?;
    let child = LimitedChild {
        id: RunId::now(),
        args: vec!["inspect".into(), "--folder".into(), folder.into()],
        logs: Logs { cap: output::DEFAULT_CAP, ..Logs::named(folder, "child") },
        time_limit: TIME_LIMIT + UPLOAD_WAIT,
    };
    let ended = children.run(&child, stop).await;
    let bytes = fs::read(folder.join(RESULT)).unwrap_or_default();
    let result: InspectionResult<T> = match serde_json::from_slice(&bytes) {
        Ok(result) => result,
        Err(_) if stop.is_cancelled() => return Err(IntakeError::Stopped),
        Err(_) => {
            let why = ended.err().unwrap_or_else(|| child.last_words());
            let subject = match task {
                InspectionTask::Captures(_) => "the capture",
                InspectionTask::Inputs(_) => "the inputs",
            };
            InspectionResult::Unfit(format!("cannot inspect {subject}: {why}"))
        }
    };
    fs::remove_dir_all(folder)?;
    result.into()
}

/// Executes the inspection in `folder`: `llmprof inspect`.
pub fn execute(folder: &Path) -> io::Result<()> {
    let result = match serde_json::from_slice(&fs::read(folder.join(TASK))?)? {
        InspectionTask::Captures(task) => {
            serde_json::to_vec(&InspectionResult::from(inspect_files(&task)))?
        }
        InspectionTask::Inputs(upload) => {
            serde_json::to_vec(&InspectionResult::from(staging::stage(&upload)))?
        }
    };
    fs::write(folder.join(RESULT), result)
}

fn inspect_files(task: &CapturesTask) -> Result<Vec<InspectedFile>, IntakeError> {
    let (mut found, mut total) = (Vec::new(), 0);
    for UploadedFile { path, name } in &task.files {
        let unfit = |reason: String| IntakeError::Unfit(format!("{name}: {reason}"));
        let (kind, bytes) = match import_staging::settle((path, name), total, task.limits) {
            Err(IntakeError::Unfit(reason)) => return Err(unfit(reason)),
            settled => settled?,
        };
        total += bytes;
        check_content(path, kind, &task.rules, task.tools).map_err(unfit)?;
        found.push(InspectedFile { kind, bytes });
    }
    Ok(found)
}

/// Checks that a file can be read as what it seems to be.
fn check_content(
    path: &Path,
    kind: CaptureKind,
    rules: &Import,
    tools: ReportTools,
) -> Result<(), String> {
    let rules = rules_of(&rules.stages, &rules.include_ranges, &rules.exclude_ranges);
    let read = match kind {
        CaptureKind::Timeline => {
            match parse::nsys::check(path).and_then(|()| parse::nsys::check_rules(path, &rules)) {
                Ok(Err(unknown)) => return Err(unknown.to_string()),
                read => read.map(|_| ()),
            }
        }
        CaptureKind::PytorchTrace => match parse::kineto::check(path, &rules) {
            Ok(Err(unknown)) => return Err(unknown.to_string()),
            read => read.map(|_| ()),
        },
        CaptureKind::Counters => parse::ncu::check(path),
        CaptureKind::Report if tools.nsys => Ok(()),
        CaptureKind::Report => {
            return Err(
                "a report of nsys, and this host has no nsys to read it; upload the output of \
                 `nsys export --type sqlite`"
                    .into(),
            );
        }
        CaptureKind::CounterReport if tools.ncu => Ok(()),
        CaptureKind::CounterReport => {
            return Err(
                "a report of ncu, and this host has no ncu to read it; upload the output of `ncu \
                 --import REPORT --csv --page raw`"
                    .into(),
            );
        }
    };
    // The client sees its own name of the file, no path of this host.
    read.map_err(|error| {
        llmprof_core::chain(&error)
            .replace(&format!("{}: ", path.display()), "")
            .replace(&path.display().to_string(), "it")
    })
}
