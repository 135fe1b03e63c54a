//! Logs of cuBLAS (`CUBLAS_LOGINFO_DBG=1`) and cublasLt (`CUBLASLT_LOG_LEVEL=5`) back to matrix
//! products.
//!
//! Both are read line by line in bounded memory. Other lines are skipped; a call without sizes is
//! counted, never guessed.

use std::{
    collections::{BTreeSet, HashMap},
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use llmprof_core::{
    domain::runner::RunnerRequest,
    layout,
    trace::gemm::{GemmCall, GemmLog, GemmShape, GemmTrace, ProcessGemms},
};

use super::ParseError;
use crate::parse::stored;

/// Maximum length of a log and of a line.
const MAX_LOG: u64 = 1 << 30;
const MAX_LINE: usize = 64 << 10;
/// Maximum number of arguments of a call: three times as many as in the longest known call.
const MAX_ARGUMENTS: usize = 64;
/// Mode of the handle, in the line that names its process.
const MATH_MODE: &str = "; MathMode=";
/// Maximum number of processes of a command whose logs are read.
const MAX_PROCESSES: usize = 64;

/// Reads the GEMM logs in the run's folder; `None` if there are none.
pub fn read(dir: &Path) -> Result<Option<GemmTrace>, ParseError> {
    let folder = dir.join(layout::GEMM_LOG);
    if !folder.exists() {
        return Ok(None);
    }
    let processes = folder.join(layout::GEMM_PROCESSES);
    if processes.exists() {
        return Ok(Some(GemmTrace {
            processes: read_processes(&processes)?,
            ..GemmTrace::default()
        }));
    }
    let log = |pass: &str, name: &str, parser: &mut dyn Parser| {
        read_log(&folder.join(pass).join(name), parser)
    };
    let steps = stored::read_own(&folder.join(layout::GEMM_ALL).join(layout::REQUEST)).ok();
    let request: Option<RunnerRequest> =
        steps.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    Ok(Some(GemmTrace {
        prefill: log(layout::GEMM_PREFILL, layout::CUBLAS_LOG, &mut Cublas::default())?,
        all: log(layout::GEMM_ALL, layout::CUBLAS_LOG, &mut Cublas::default())?,
        lt_prefill: log(layout::GEMM_PREFILL, layout::CUBLASLT_LOG, &mut CublasLt)?,
        lt_all: log(layout::GEMM_ALL, layout::CUBLASLT_LOG, &mut CublasLt)?,
        decode_steps: request.map_or(0, |request| request.max_new_tokens.into()),
        processes: vec![],
    }))
}

/// Reads the logs of a command's processes, in the order of their ids.
fn read_processes(folder: &Path) -> Result<Vec<ProcessGemms>, ParseError> {
    let unread = |source| ParseError::Read { path: folder.into(), source };
    let pid = |name: &str| -> Option<u32> {
        let name = name.strip_suffix(".zst").unwrap_or(name).strip_suffix(".log")?;
        name.strip_prefix("cublas_").or_else(|| name.strip_prefix("cublaslt_"))?.parse().ok()
    };
    let names = std::fs::read_dir(folder).map_err(unread)?.map(|entry| Ok(entry?.file_name()));
    let names: Vec<_> = names.collect::<io::Result<_>>().map_err(unread)?;
    let pids: BTreeSet<u32> = names.iter().filter_map(|name| pid(name.to_str()?)).collect();
    let path = |name: &str, pid: u32| folder.join(name.replace("%i", &pid.to_string()));
    let logs = |pid| {
        Ok(ProcessGemms {
            pid,
            cublas: read_log(&path(layout::CUBLAS_PROCESS_LOG, pid), &mut Cublas::default())?,
            lt: read_log(&path(layout::CUBLASLT_PROCESS_LOG, pid), &mut CublasLt)?,
        })
    };
    pids.into_iter().take(MAX_PROCESSES).map(logs).collect()
}

fn read_log(path: &Path, parser: &mut dyn Parser) -> Result<GemmLog, ParseError> {
    match stored::open(path) {
        Ok(file) => {
            parse_log(file, parser).map_err(|source| ParseError::Read { path: path.into(), source })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(GemmLog::default()),
        Err(source) => Err(ParseError::Read { path: path.into(), source }),
    }
}

/// Takes a log's lines one by one.
trait Parser {
    fn line(&mut self, line: &str, log: &mut GemmLog);
    /// The log has ended.
    fn end(&mut self, _log: &mut GemmLog) {}
}

fn parse_log(from: impl Read, parser: &mut dyn Parser) -> io::Result<GemmLog> {
    let mut log = GemmLog::default();
    let mut reader = BufReader::new(from.take(MAX_LOG));
    let mut line = Vec::new();
    let mut read = 0u64;
    loop {
        line.clear();
        let n = (&mut reader).take(MAX_LINE as u64).read_until(b'\n', &mut line)?;
        if n == 0 {
            break;
        }
        read += n as u64;
        parser.line(String::from_utf8_lossy(&line).trim_end(), &mut log);
    }
    parser.end(&mut log);
    log.cut = read >= MAX_LOG;
    Ok(log)
}

/// A call of cuBLAS: a line that names the function, then one per argument.
#[derive(Default)]
struct Cublas {
    function: Option<String>,
    arguments: HashMap<String, String>,
}

impl Parser for Cublas {
    fn line(&mut self, line: &str, log: &mut GemmLog) {
        if let Some(call) = line.strip_prefix("I! cuBLAS") {
            log.known_lines += 1;
            self.end(log);
            // The version before the function has brackets too, and no name before them.
            let names = call.split_whitespace().filter_map(|word| word.split_once('('));
            let function = names.map(|(name, _)| name).find(|name| !name.is_empty());
            let function = function.filter(|name| is_gemm(name));
            log.grouped += u64::from(function.is_some_and(is_grouped));
            self.function = function.filter(|name| !is_grouped(name)).map(str::to_owned);
        } else if let Some(argument) = line.strip_prefix("i!") {
            log.known_lines += 1;
            if self.function.is_some()
                && self.arguments.len() < MAX_ARGUMENTS
                && let Some((name, rest)) = argument.trim_start().split_once(": type=")
                && let Some((_, value)) = rest.split_once("; val=")
            {
                self.arguments.insert(name.to_owned(), value.trim().to_owned());
            } else if self.function.is_some()
                && let Some((_, mode)) = argument.split_once(MATH_MODE)
            {
                self.arguments.insert(MATH_MODE.to_owned(), mode.to_owned());
            }
        }
    }

    fn end(&mut self, log: &mut GemmLog) {
        let (function, arguments) = (self.function.take(), std::mem::take(&mut self.arguments));
        let Some(function) = function else { return };
        match cublas_shape(&function, &arguments) {
            Some(shape) => {
                let algorithm = arguments
                    .get("algo")
                    .map(|name| enumerator(name))
                    .filter(|name| !name.contains("DEFAULT"));
                log.calls.push(GemmCall {
                    shape,
                    function,
                    algorithm: algorithm.map(str::to_owned),
                });
            }
            None => log.incomplete += 1,
        }
    }
}

fn is_gemm(function: &str) -> bool {
    function.starts_with("cublas") && function.to_ascii_lowercase().contains("gemm")
}

/// Returns true if the arguments of a function are lists of sizes, which the log does not have.
fn is_grouped(function: &str) -> bool {
    function.to_ascii_lowercase().contains("grouped")
}

fn cublas_shape(function: &str, arguments: &HashMap<String, String>) -> Option<GemmShape> {
    let size = |name: &str| arguments.get(name)?.parse::<u64>().ok();
    let op = |name: &str| Some(!arguments.get(name)?.contains("CUBLAS_OP_N"));
    // `cublasSgemm` has no types among its arguments: its name is one, also of the accumulator.
    let (named, compute) = match function.strip_prefix("cublas").and_then(|it| it.chars().next()) {
        Some('S') => ("f32", "32f"),
        Some('D') => ("f64", "64f"),
        Some('H') => ("f16", "16f"),
        Some('C') => ("c_32f", "32f"),
        Some('Z') => ("c_64f", "64f"),
        _ => ("", ""),
    };
    let kind =
        |name: &str| arguments.get(name).map_or_else(|| named.to_owned(), |value| data_type(value));
    // A truncated log may have the sizes without the types.
    let (left_type, right_type, out_type) = (kind("Btype"), kind("Atype"), kind("Ctype"));
    if [&left_type, &right_type, &out_type].iter().any(|kind| kind.is_empty()) {
        return None;
    }
    let batched = function.contains("Batched");
    let compute =
        arguments.get("computeType").map_or_else(|| compute.into(), |value| compute_type(value));
    // The mode lets products of f32 use tensor cores, unless the accumulator forbids it.
    let is_tf32 = arguments.get(MATH_MODE).is_some_and(|mode| mode.contains("TF32"))
        && [&left_type, &right_type].iter().all(|kind| ["f32", "c_32f"].contains(&kind.as_str()))
        && compute == "32f";
    Some(GemmShape {
        m: size("n")?,
        n: size("m")?,
        k: size("k")?,
        batch: if batched { size("batchCount")? } else { 1 },
        left_type,
        right_type,
        out_type,
        left_transposed: op("transb")?,
        right_transposed: op("transa")?,
        compute: if is_tf32 { "32f_fast_tf32".into() } else { compute },
    })
}

/// A call of cublasLt: one line, its descriptors in brackets.
struct CublasLt;

impl Parser for CublasLt {
    fn line(&mut self, line: &str, log: &mut GemmLog) {
        let Some((head, arguments)) = line.strip_prefix('[').and_then(|line| line.split_once("] "))
        else {
            return;
        };
        let mut parts = head.split("][").skip(1);
        if parts.next() != Some("cublasLt") {
            return;
        }
        log.known_lines += 1;
        let (Some(_), Some(level), Some(function)) = (parts.next(), parts.next(), parts.next())
        else {
            return;
        };
        // The level `Api` repeats each call, with addresses in place of descriptors.
        if level != "Trace" || !function.ends_with("Matmul") {
            return;
        }
        match lt_shape(arguments) {
            Some(shape) => {
                let algorithm = group(arguments, "algo").map(algorithm);
                log.calls.push(GemmCall { shape, function: function.to_owned(), algorithm });
            }
            None => log.incomplete += 1,
        }
    }
}

fn lt_shape(arguments: &str) -> Option<GemmShape> {
    let [a, b, d] = ["Adesc", "Bdesc", "Ddesc"].map(|name| group(arguments, name));
    let (a, b, d) = (a?, b?, d?);
    let compute = group(arguments, "computeDesc")?;
    let size = |of: &str, name: &str| item(of, name)?.parse::<u64>().ok();
    let transposed = |name: &str| item(compute, name).is_some_and(|op| op != "OP_N");
    let (a_transposed, b_transposed) = (transposed("transa"), transposed("transb"));
    Some(GemmShape {
        m: size(d, "cols")?,
        n: size(d, "rows")?,
        k: size(a, if a_transposed { "rows" } else { "cols" })?,
        batch: size(d, "batchCount").unwrap_or(1),
        left_type: data_type(item(b, "type")?),
        right_type: data_type(item(a, "type")?),
        out_type: data_type(item(d, "type")?),
        left_transposed: b_transposed,
        right_transposed: a_transposed,
        compute: compute_type(item(compute, "computeType")?),
    })
}

/// The contents of `NAME=[...]`; `None` if the bracket is not closed.
fn group<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let start = text.match_indices(name).find_map(|(at, _)| {
        let whole = at == 0 || text[..at].ends_with(' ');
        text[at + name.len()..].strip_prefix("=[").filter(|_| whole)
    })?;
    start.split_once(']').map(|(inside, _)| inside)
}

/// The value of `NAME=value` among words.
fn item<'a>(group: &'a str, name: &str) -> Option<&'a str> {
    group.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// `algorithm 66, tile 128x64, stages 64xAUTO, cluster 1x2x1, split-K 3`.
fn algorithm(group: &str) -> String {
    let names = [
        ("algoId", "algorithm", ""),
        ("tile", "tile", "MATMUL_TILE_"),
        ("stages", "stages", "MATMUL_STAGES_"),
        ("clusterShape", "cluster", "CLUSTER_SHAPE_"),
        ("numSplitsK", "split-K", ""),
    ];
    let values = names.iter().filter_map(|(name, word, prefix)| {
        let value = item(group, name)?;
        Some(format!("{word} {}", value.strip_prefix(prefix).unwrap_or(value)))
    });
    values.collect::<Vec<_>>().join(", ")
}

/// `CUDA_R_16BF(14)` without its number.
fn enumerator(value: &str) -> &str {
    value.split_once('(').map_or(value, |(name, _)| name)
}

fn data_type(value: &str) -> String {
    let name = enumerator(value);
    match name.trim_start_matches("CUDA_") {
        "R_16BF" => "bf16".into(),
        "R_16F" => "f16".into(),
        "R_32F" => "f32".into(),
        "R_64F" => "f64".into(),
        "R_8F_E4M3" => "f8_e4m3".into(),
        "R_8F_E5M2" => "f8_e5m2".into(),
        "R_8I" => "i8".into(),
        "R_32I" => "i32".into(),
        other => other.to_lowercase(),
    }
}

fn compute_type(value: &str) -> String {
    enumerator(value).trim_start_matches("CUBLAS_").trim_start_matches("COMPUTE_").to_lowercase()
}

#[cfg(test)]
mod tests;
