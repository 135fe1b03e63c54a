//! The pass of a command under the profiler of PyTorch, with a package `torch` that records the
//! calls of its profiler and exports a real trace.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::commands::{finding, json as json_file, nsys, read, service, submit};
use crate::support::service::Service;

/// `torch/__init__.py`, as far as the pass uses it.
const TORCH: &str = r#"
from types import SimpleNamespace
from . import profiler
nvtx = SimpleNamespace(range_push=lambda message: 0, range_pop=lambda: 0)
cuda = SimpleNamespace(nvtx=nvtx)
"#;

/// `torch/profiler.py`.
const PROFILER: &str = r#"
import os, shutil
def note(text):
    with open("calls.txt", "a") as file:
        print(text, file=file)
def supported_activities():
    return set()
class record_function:
    def __init__(self, name):
        self.name = name
    def __enter__(self):
        note("open " + self.name)
    def __exit__(self, *_):
        note("close " + self.name)
class profile:
    def __init__(self, activities=None, record_shapes=False):
        assert record_shapes or activities is None
        self.by = "pass" if record_shapes else "program"
    def start(self):
        note("start " + self.by)
    def stop(self):
        note("stop " + self.by)
    def export_chrome_trace(self, path):
        assert path.endswith(".json.gz")
        shutil.copy(os.environ["TRACE"], path)
"#;

/// The program's own module: it is executed too.
const SITECUSTOMIZE: &str = "print('sitecustomize of the program')";

const RANGES: &str = "import torch\ntorch.cuda.nvtx.range_push('prefill')\n\
                      torch.cuda.nvtx.range_pop()";
const OWN: &str = "import torch\nown = torch.profiler.profile()\nown.start()\nown.stop()";
const SERVER: &str = "import torch, time\nprint('ready', flush=True)\ntime.sleep(600)";

/// A command of Python; a server with `more`.
fn command(data: &Path, name: &str, program: &str, more: &str) -> String {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/captures/torch-kineto-eager.json.gz");
    format!(
        "[commands.{name}]\ndescription = 'Python'\nprogram = 'python3'\ntorch_profiler = true\n\
         args = ['-c', '''{program}''']\ngpus = 0\nstages = ['prefill=prefill']\n\
         env = {{ PYTHONPATH = '{}', TRACE = '{}' }}\n{more}\n",
        data.join("lib").display(),
        trace.display()
    )
}

fn started(data: &Path, nsys: &str) -> Service {
    let torch = data.join("lib/torch");
    fs::create_dir_all(&torch).unwrap();
    fs::write(torch.join("__init__.py"), TORCH).unwrap();
    fs::write(torch.join("profiler.py"), PROFILER).unwrap();
    fs::write(data.join("lib/sitecustomize.py"), SITECUSTOMIZE).unwrap();
    let ready = "kind = 'server'\nready = { log = 'ready', within_s = 30 }\nduration_s = 1";
    let commands = [
        command(data, "ranges", RANGES, ""),
        command(data, "own", OWN, ""),
        command(data, "serve", SERVER, ready),
        command(data, "none", "print(1)", ""),
    ];
    service(data, &commands.concat(), nsys)
}

async fn ended(service: &Service, name: &str) -> (String, Value) {
    let id = submit(service, name, json!({}), json!({ "mode": "light", "warmup": 0 })).await;
    let run = service.end(&id).await;
    (id, run)
}

fn step<'a>(run: &'a Value, name: &str) -> &'a Value {
    run["steps"].as_array().unwrap().iter().find(|it| it["step"] == name).unwrap()
}

/// Rows of `aten::mm` in the report's table of operators.
fn products(service: &Service, id: &str) -> Vec<Value> {
    let report = json_file(service, id, "report.json");
    let rows = report["operators"].as_array().unwrap().iter();
    rows.filter(|it| it["path"] == "aten::mm").cloned().collect()
}

#[tokio::test]
async fn operators_of_pytorch_are_those_of_a_pass_of_its_own() {
    let data = tempfile::tempdir().unwrap();
    let service = started(data.path(), "none");
    let (id, run) = ended(&service, "ranges").await;
    assert_eq!(step(&run, "torch_profiler")["state"], "succeeded", "{run:#}");
    let calls = read(&service, &id, "torch_profiler/out/calls.txt");
    assert_eq!(calls, "start pass\nopen prefill\nclose prefill\nstop pass\n");
    let log = read(&service, &id, "logs/torch_profiler.stdout.log");
    assert_eq!(log, "sitecustomize of the program\n");
    let plain = service.run_dir(&id).join("baseline/out/calls.txt");
    let opened = fs::read_to_string(plain).unwrap_or_default();
    assert!(opened.is_empty(), "the unprofiled pass has no profiler: {opened}");
    let products = products(&service, &id);
    assert!(!products.is_empty() && products.iter().all(|it| it["flops"].is_u64()), "{products:?}");
}

#[tokio::test]
async fn operators_of_pytorch_stand_next_to_the_timeline_of_nsys() {
    let Some(nsys) = nsys() else { return };
    let data = tempfile::tempdir().unwrap();
    let service = started(data.path(), &nsys);
    let (id, run) = ended(&service, "ranges").await;
    assert_eq!(step(&run, "nsys")["state"], "succeeded", "{run:#}");
    assert_eq!(step(&run, "torch_profiler")["state"], "succeeded", "{run:#}");
    assert!(!products(&service, &id).is_empty());
    let report = read(&service, &id, "report.md");
    assert!(report.contains("Operators of the pass under the profiler of PyTorch"), "{report}");
    let kernels = json_file(&service, &id, "report.json")["kernels_topk"].clone();
    assert_eq!(kernels, json!([]), "kernels are those of nsys");
}

#[tokio::test]
async fn a_profiler_of_the_program_has_precedence_and_the_trace_before_it_is_kept() {
    let data = tempfile::tempdir().unwrap();
    let service = started(data.path(), "none");
    let (id, run) = ended(&service, "own").await;
    assert_eq!(step(&run, "torch_profiler")["state"], "succeeded", "{run:#}");
    let calls = read(&service, &id, "torch_profiler/out/calls.txt");
    assert_eq!(calls, "start pass\nstop pass\nstart program\nstop program\n");
}

#[tokio::test]
async fn a_server_that_is_stopped_writes_its_trace() {
    let data = tempfile::tempdir().unwrap();
    let service = started(data.path(), "none");
    let (id, run) = ended(&service, "serve").await;
    assert_eq!(step(&run, "torch_profiler")["state"], "succeeded", "{run:#}");
    assert!(!products(&service, &id).is_empty());
}

#[tokio::test]
async fn a_program_without_torch_or_that_fails_ends_the_pass_with_the_reason() {
    let data = tempfile::tempdir().unwrap();
    let service = started(data.path(), "none");
    let (id, run) = ended(&service, "none").await;
    assert_eq!(run["state"], "partial", "{run:#}");
    let message = step(&run, "torch_profiler")["message"].as_str().unwrap();
    assert!(message.contains("does not import torch"), "{message}");
    assert!(finding(&run, "operators_unknown").is_none() && products(&service, &id).is_empty());
}
