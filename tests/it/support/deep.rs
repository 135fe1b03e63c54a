//! A host for deep runs without a GPU: NVML, nsys and ncu are stand-ins, and the runner is the real
//! one on the CPU. Each start of the runner is counted by the folder of its pass.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};

use super::service::{self, MODEL, RUNNER, Service, Setup};

const RUNNER_LINES: &str = r#"
case $1 in features) echo '{"cuda": true, "version": "0.1.0"}'; exit 0;; esac
while [ $# -gt 0 ]; do
case $1 in --out) out=$2; shift;; --request) request=$2; shift;; esac; shift
done
pass=${out#*/runs/*/}
echo "$pass" >> "$HERE/starts"
if [ "$pass" = "$(cat "$HERE/hang" 2>/dev/null)" ]; then echo up >&2; exec sleep 600; fi
[ -z "$CUBLAS_LOGDEST_DBG" ] || cat "$HERE/cublas.log" > "$CUBLAS_LOGDEST_DBG"
sed 's/"device": "cuda:0"/"device": "cpu"/; s/"decode_graph": true/"decode_graph": false/' \
    "$request" > "$out/on-cpu.json"
exec "$RUNNER" run --request "$out/on-cpu.json" --out "$out""#;
const NSYS_LINES: &str = r#"
case $1 in
--version) echo "NVIDIA Nsight Systems version $(cat "$HERE/nsys-version")";;
profile) while [ "$1" != --output ]; do shift; done; stem=$2; shift 2; "$@" || exit $?
    echo report > "$stem.nsys-rep"; echo "Generated: $stem.nsys-rep";;
export) while [ "$1" != --output ]; do shift; done
    case $2 in *gpu_metrics*) cat "$HERE/sampled.sqlite" > "$2";; *) cat "$HERE/run.sqlite" > "$2";;
    esac;;
esac"#;
const NCU_LINES: &str = r#"
case "$*" in
*--version*) echo 'Version 2025.3.1.0 (build 1)';;
*--query-metrics*) echo 'dram__bytes_read  Counter  byte';;
*sm__cycles_elapsed.max*) echo 'sm__cycles_elapsed.max cycle 12';;
*--import*) cat "$HERE/raw.csv";;
*) while [ "$1" != --export ]; do shift; done; report=$2; shift 2; "$@" || exit $?
    echo report > "$report";;
esac"#;

/// The passes of a deep run.
pub const PASSES: [&str; 6] = [
    "baseline",
    "nsys",
    "gpu_metrics/rate-20000",
    "ncu/process-1",
    "gemm_log/prefill",
    "gemm_log/all",
];

/// Stand-ins for the tools, and what they need, in one folder.
pub struct DeepHost {
    folder: tempfile::TempDir,
    /// The service's data folder.
    pub data: PathBuf,
}

impl DeepHost {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let host = Self { folder, data };
        fake_nvml(host.folder());
        for (name, fixture) in [
            ("run.sqlite", "hf-llama-e2e.sqlite"),
            ("raw.csv", "hf-llama-decode.ncu-raw.csv"),
            ("cublas.log", "candle-probe.cublas.log"),
        ] {
            let packed = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("tests/fixtures/captures")
                .join(format!("{fixture}.zst"));
            let file = fs::File::open(packed).unwrap();
            host.put(name, zstd::stream::decode_all(file).unwrap());
        }
        let recorded = rusqlite::Connection::open(host.folder().join("run.sqlite")).unwrap();
        recorded.execute_batch(include_str!("../../fixtures/measured-repeat.sql")).unwrap();
        drop(recorded);
        let sampled = host.folder().join("sampled.sqlite");
        fs::copy(host.folder().join("run.sqlite"), &sampled).unwrap();
        let sql = include_str!("../../fixtures/gpu-metrics.sql");
        rusqlite::Connection::open(&sampled).unwrap().execute_batch(sql).unwrap();
        let inputs = host.folder().join("inputs");
        fs::create_dir(&inputs).unwrap();
        for name in ["inputs-text.yaml", "small.png"] {
            let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples").join(name);
            fs::copy(sample, inputs.join(name)).unwrap();
        }
        host.put("nsys-version", "2025.3.2.1");
        host.program("runner", RUNNER_LINES);
        host.program("nsys", NSYS_LINES);
        host.program("ncu", NCU_LINES);
        host
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file that the stand-ins read.
    pub fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.folder().join(name), content).unwrap();
    }

    /// Lets the runner print `up` and hang in this pass.
    pub fn hang_in(&self, pass: &str) {
        self.put("hang", pass);
    }

    pub fn hang_nowhere(&self) {
        fs::remove_file(self.folder().join("hang")).unwrap();
    }

    /// Replaces the runner by another program that does the same.
    pub fn replace_runner(&self) {
        self.program("runner", &format!("# another build{RUNNER_LINES}"));
    }

    /// Gives the recorded kernels symbols for which ncu runs in several processes; returns the
    /// passes.
    pub fn lengthen_symbols(&self) -> Vec<&'static str> {
        let export = rusqlite::Connection::open(self.folder().join("run.sqlite")).unwrap();
        // Shorter ones, so that the page has kernels of each process.
        let sql = include_str!("../../fixtures/long-symbols.sql").replace("30000", "8000");
        export.execute_batch(&sql).unwrap();
        let mut passes = PASSES.to_vec();
        let first = passes.iter().position(|it| *it == "ncu/process-1").unwrap();
        passes.splice(first + 1..first + 1, ["ncu/process-2", "ncu/process-3", "ncu/process-4"]);
        passes
    }

    /// Lets ncu report that only administrators may read counters.
    pub fn forbid_counters(&self) {
        let lines = r#"case "$*" in *--version*) echo 'Version 2025.3.1.0 (build 1)';;
            *) echo '==ERROR== ERR_NVGPUCTRPERM' >&2; exit 1;; esac"#;
        self.program("ncu", lines);
    }

    /// The passes in which the runner was started, in order.
    pub fn starts(&self) -> Vec<String> {
        let starts = fs::read_to_string(self.folder().join("starts")).unwrap_or_default();
        starts.lines().map(str::to_owned).collect()
    }

    pub fn command(&self) -> Command {
        let setup =
            Setup { runner: self.folder().join("runner"), nsys: self.folder().join("nsys") };
        let mut command = service::command(&self.data, &setup);
        command
            .env("LLMPROF__TOOLS__NCU", self.folder().join("ncu"))
            .env("LLMPROF__WORKER__DEVICES", r#"["cuda:0"]"#)
            .env("LLMPROF__SERVER__INPUTS", self.folder().join("inputs"))
            .env("LD_LIBRARY_PATH", self.folder());
        command
    }

    pub fn serve(&self) -> Service {
        Service::spawn(&mut self.command(), &self.data)
    }

    fn program(&self, name: &str, lines: &str) {
        let head = format!("HERE='{}'\nRUNNER='{RUNNER}'", self.folder().display());
        write_program(&self.folder().join(name), &format!("{head}\n{lines}"));
    }
}

/// A small deep run.
pub fn deep() -> Value {
    json!({
        "model": MODEL, "mode": "deep", "dtype": "f32", "repeats": 2, "warmup": 1,
        "max_new_tokens": 8, "inputs_manifest": "inputs-text.yaml",
        "profiling": { "nvml": { "steady_ms": 0 } }
    })
}

/// Writes a program by a shell: a file that a fork holds open for writing cannot be executed.
fn write_program(path: &Path, lines: &str) {
    let write = r#"rm -f "$1" && printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod 755 "$1""#;
    let written = Command::new("sh").args(["-c", write, "sh"]).arg(path).arg(lines).status();
    assert!(written.unwrap().success());
}

/// Builds the library into `folder`.
pub fn fake_nvml(folder: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/nvml/fake.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o"])
        .arg(folder.join("libnvidia-ml.so.1"))
        .arg(source)
        .arg("-ldl")
        .status();
    assert!(built.unwrap().success(), "a C compiler is needed, as for the build itself");
}
