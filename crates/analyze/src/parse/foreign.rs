//! Names of files that no reader takes, by their first bytes, with a remedy.
//!
//! A message is one line: the format of the file, and the command that makes a capture of it.

use std::{io::Read as _, path::Path};

use super::{
    capture_path::CapturePath,
    compressed::{GZIP, ZSTD},
    encoding::decoded,
    kineto,
    stored::{open_named, open_own},
};

/// Message for a file without a byte.
pub const EMPTY: &str = "empty (0 bytes); copy or export the file again";
/// Remedy for a file that ends early.
pub const COPY_AGAIN: &str = "copy or export the file again";
/// Start of every SQLite file.
pub const SQLITE: &[u8; 16] = b"SQLite format 3\0";
/// Bytes by which a file is recognised.
pub const HEAD: u64 = 4096;
/// Stands for the path of the file in a remedy.
const FILE: &str = "FILE";
/// Maximum length of quoted text of the file, characters.
const MAX_QUOTED: usize = 40;

const EXPORT: &str = "export the report as SQLite: nsys export --type sqlite REPORT.nsys-rep";
const PROFILE: &str = "profile it: nsys profile --trace=cuda,nvtx FILE";
const PAGE: &str = "expected a page of ncu: ncu --import REPORT.ncu-rep --csv --page raw";
const DATABASE: &str = "an SQLite database";
const SOME_CAPTURE: &str = "expected an SQLite export of nsys (nsys export --type sqlite \
                            REPORT.nsys-rep) or a trace by the profiler of PyTorch";
const ANY_CAPTURE: &str = "expected an SQLite export of nsys (nsys export --type sqlite \
                           REPORT.nsys-rep), a trace by the profiler of PyTorch or a page of ncu \
                           (ncu --import REPORT.ncu-rep --csv --page raw)";

/// A format that the reader at hand does not take.
#[derive(Debug)]
struct Foreign {
    what: String,
    remedy: &'static str,
}

/// Formats that no reader takes: an offset, the bytes there, the name and the remedy.
const FORMATS: [(usize, &[u8], &str, &str); 12] = [
    (0, b"PAR1", "a Parquet file", EXPORT),
    (0, b"ARROW1", "an Arrow file", EXPORT),
    (8, b"\x10\0\0\0\0\0\x0a\0", "an Arrow stream", EXPORT),
    (0, b"\x89HDF", "an HDF5 file", EXPORT),
    (0, b"PK\x03\x04", "a zip archive", "unpack it: unzip FILE"),
    (257, b"ustar", TAR, UNTAR),
    (0, b"\x7fELF", "a program (ELF)", PROFILE),
    (0, b"#!", "a script", PROFILE),
    (0, b"version https://git-lfs", "a pointer of Git LFS", "fetch the file: git lfs pull"),
    (0, b"\x37\x7f\x06\x82", WAL, PASS_DATABASE),
    (0, b"\x37\x7f\x06\x83", WAL, PASS_DATABASE),
    (0, b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7", "a rollback journal of SQLite", PASS_DATABASE),
];
const TAR: &str = "a tar archive";
const UNTAR: &str = "unpack it: tar xf FILE";
const WAL: &str = "a write-ahead log of SQLite";
const PASS_DATABASE: &str =
    "pass the database next to it, whose name has no suffix -wal or -journal";
/// Start of every report of nsys, and of ncu.
pub const NSYS_REPORT: &[u8] = b"NVIDIA Tegra Profiler Report";
pub const NCU_REPORT: &[u8] = b"NVR\0";
/// Captures that are not exports, by their first bytes.
const CAPTURES: [(&[u8], &str, &str); 2] = [
    (
        NSYS_REPORT,
        "a report of nsys",
        "export it (nsys export --type sqlite FILE) and pass the export, or install nsys here: \
         it is then exported by itself",
    ),
    (
        NCU_REPORT,
        "a report of ncu, which has no timeline",
        "print its page (ncu --import FILE --csv --page raw > page.csv) and pass it with --ncu \
         page.csv, next to a timeline",
    ),
];
/// Parts of the pages of ncu.
const PAGES: [&str; 2] = ["==PROF==", "\"Kernel Name\""];
/// Parts of the tables of `nsys stats`.
const STATS: [&str; 4] = ["Total Time (ns)", "Duration (ns)", "API Dur (ns)", "TAvg (ns)"];
/// Texts of JSON that are not traces, by a part of their start.
const JSON: [(&str, &str, &str); 5] = [
    ("{\"data\":[", "an export of nsys as JSON", EXPORT),
    ("\"VmSystemInformation\"", "an export of nsys as info", EXPORT),
    ("\"architectures\"", CONFIG, WITH_CONFIG),
    ("\"model_type\"", CONFIG, WITH_CONFIG),
    ("", "JSON without traceEvents", "expected a trace by prof.export_chrome_trace of PyTorch"),
];
const CONFIG: &str = "JSON without traceEvents, with the config of a model";
const WITH_CONFIG: &str = "pass it with --model-config, next to a capture";

/// A compression, by bytes at an offset.
#[derive(Debug)]
struct Compression {
    at: usize,
    bytes: &'static [u8],
    name: &'static str,
    suffix: &'static str,
    /// Decompresses a file with the suffix, and keeps it.
    command: &'static str,
}

const COMPRESSIONS: [Compression; 5] = [
    Compression { at: 0, bytes: GZIP, name: "gzip", suffix: ".gz", command: "gzip -dk" },
    Compression { at: 0, bytes: ZSTD, name: "zstd", suffix: ".zst", command: "zstd -d" },
    Compression { at: 0, bytes: b"\xfd7zXZ", name: "xz", suffix: ".xz", command: "xz -dk" },
    Compression { at: 4, bytes: b"1AY&SY", name: "bzip2", suffix: ".bz2", command: "bzip2 -dk" },
    Compression {
        at: 0,
        bytes: b"\x04\x22\x4d\x18",
        name: "lz4",
        suffix: ".lz4",
        command: "lz4 -d",
    },
];

/// True for a report of nsys that an argument names: only nsys exports one.
pub fn is_nsys_report(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = open_named(path).and_then(|it| it.take(HEAD).read_to_end(&mut head));
    read.is_ok() && head.starts_with(NSYS_REPORT)
}

/// The message for a file that neither analysis nor import reads; `None` for every other file.
/// `name` stands in its commands.
pub fn unread(head: &[u8], name: &str) -> Option<String> {
    let packed = compression(head).filter(|it| !["gzip", "zstd"].contains(&it.name));
    packed
        .map(|it| it.message(None, name))
        .or_else(|| Some(format(head)?.message(name)))
        .or_else(|| stats(head).filter(|_| !is_page(head)).map(|it| it.message(name)))
}

/// The message for a file that is not an export of nsys.
pub fn not_an_export(file: &CapturePath, head: &[u8]) -> String {
    message(file, head, || expected(head, DATABASE, SOME_CAPTURE))
}

/// The message for a file that is not a page of ncu; `None` for a page.
pub fn not_a_page(file: &CapturePath) -> Option<String> {
    unless_page(file, "a page of ncu", PAGE)
}

/// The same for a file that may have any format of captures.
pub fn not_a_capture(file: &CapturePath) -> Option<String> {
    unless_page(file, "a capture", ANY_CAPTURE)
}

/// The message for a file named `name` that starts with `head`, of a format that is not known.
pub fn unknown(head: &[u8], name: &str) -> String {
    expected(head, "a capture", ANY_CAPTURE).message(name)
}

fn unless_page(file: &CapturePath, wanted: &str, remedy: &'static str) -> Option<String> {
    let mut head = Vec::new();
    file.open().ok()?.take(HEAD).read_to_end(&mut head).ok()?;
    if head.is_empty() {
        return Some(EMPTY.into());
    }
    let known = compression(&head).is_some() || format(&head).is_some() || stats(&head).is_some();
    let is_binary = decoded(&head).contains('\0');
    (known || is_binary || !is_page(&head))
        .then(|| message(file, &head, || expected(&head, wanted, remedy)))
}

fn is_page(head: &[u8]) -> bool {
    let text = decoded(head);
    PAGES.iter().any(|part| text.contains(part))
}

/// The message for JSON that is not a trace, by its start.
pub fn not_a_trace(file: &CapturePath) -> String {
    let head = kineto::head(file).unwrap_or_default();
    if let Some(events) = event_lines(file, &head) {
        return events;
    }
    let text = decoded(&head);
    let known = JSON.iter().find(|(part, ..)| text.contains(part));
    let (_, what, remedy) = known.unwrap_or(&JSON[JSON.len() - 1]);
    Foreign { what: (*what).into(), remedy }.message(&file.shown().display().to_string())
}

/// The message for a text with an event on each line; `None` for other texts.
fn event_lines(file: &CapturePath, head: &[u8]) -> Option<String> {
    let text = decoded(head);
    let (line, rest) = text.trim_start().split_once('\n')?;
    let event: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).ok()?;
    if !event.contains_key("ph") || !rest.trim_start().starts_with('{') {
        return None;
    }
    let mut start = Vec::new();
    open_own(file.data()).ok()?.take(HEAD).read_to_end(&mut start).ok()?;
    let name = quoted(&file.shown().display().to_string());
    let read = match compression(&start) {
        Some(packed) => format!("{} -dc {name} | jq -s '{{traceEvents: .}}'", packed.name),
        None => format!("jq -s '{{traceEvents: .}}' {name}"),
    };
    Some(format!("one event a line, without traceEvents; join the events: {read} > trace.json"))
}

fn message(file: &CapturePath, head: &[u8], unknown: impl Fn() -> Foreign) -> String {
    let name = file.shown().display().to_string();
    match compression(head) {
        Some(packed) => packed.message(kineto::head(file).ok(), &name),
        None => named(head).unwrap_or_else(unknown).message(&name),
    }
}

impl Foreign {
    fn message(&self, name: &str) -> String {
        format!("{}; {}", self.what, self.remedy.replace(FILE, &quoted(name)))
    }
}

impl Compression {
    /// The message for a file named `name`; `inner` is the start of its content, if that is read.
    fn message(&self, inner: Option<Vec<u8>>, name: &str) -> String {
        let (packed, file) = (self.name, quoted(name));
        let (command, plain) = match name.strip_suffix(self.suffix) {
            Some(plain) => (format!("{} {file}", self.command), plain.to_owned()),
            None => {
                let plain = format!("{name}.unpacked");
                (format!("{packed} -dc {file} > {}", quoted(&plain)), plain)
            }
        };
        let Some(inner) = inner.filter(|_| ["gzip", "zstd"].contains(&packed)) else {
            return format!("compressed with {packed}; decompress it: {command}");
        };
        match named(&inner) {
            _ if inner.is_empty() => {
                format!("compressed with {packed}, but without content; {COPY_AGAIN}")
            }
            _ if let Some(second) = compression(&inner) => {
                let second = second.name;
                format!("compressed twice, {second} in {packed}; decompress it once: {command}")
            }
            _ if inner.starts_with(SQLITE) => {
                format!("an SQLite database compressed with {packed}; decompress it: {command}")
            }
            Some(Foreign { what, .. }) if what == TAR => {
                format!("{what} compressed with {packed}; {}", UNTAR.replace(FILE, &file))
            }
            Some(Foreign { what, remedy }) if !remedy.contains(FILE) => {
                format!("{what}, compressed with {packed}; {remedy}")
            }
            Some(Foreign { what, remedy }) => format!(
                "{what}, compressed with {packed}; decompress it ({command}), then {}",
                remedy.replace(FILE, &quoted(&plain))
            ),
            None => {
                let Foreign { what, remedy } = expected(&inner, DATABASE, SOME_CAPTURE);
                format!("{what}, compressed with {packed}; {remedy}")
            }
        }
    }
}

fn compression(head: &[u8]) -> Option<&'static Compression> {
    COMPRESSIONS.iter().find(|it| has(head, it.at, it.bytes))
}

fn has(head: &[u8], at: usize, bytes: &[u8]) -> bool {
    head.get(at..).is_some_and(|rest| rest.starts_with(bytes))
}

/// A format that this module knows.
fn named(head: &[u8]) -> Option<Foreign> {
    let capture = || CAPTURES.iter().find(|(start, ..)| head.starts_with(start));
    let capture = || capture().map(|(_, what, remedy)| Foreign { what: (*what).into(), remedy });
    let page = || {
        is_page(head).then(|| Foreign {
            what: "a page of ncu, which has no timeline".into(),
            remedy: "pass it with --ncu FILE, next to a timeline",
        })
    };
    format(head).or_else(capture).or_else(page).or_else(|| stats(head))
}

/// A format that no reader takes.
fn format(head: &[u8]) -> Option<Foreign> {
    let foreign = |what: &str, remedy| Some(Foreign { what: what.into(), remedy });
    let start: String = decoded(head).trim_start().chars().take(15).collect();
    let start = start.to_ascii_lowercase();
    if let Some((_, _, what, remedy)) = FORMATS.iter().find(|(at, it, ..)| has(head, *at, it)) {
        foreign(what, remedy)
    } else if start.starts_with("<!doctype html") || start.starts_with("<html") {
        foreign("a page of HTML", "download the file itself; a browser may need a login for it")
    } else if matches!(head, [0x80, 2..=5, ..]) {
        foreign(
            "a pickle of Python",
            "it has no kernel times: export a trace with prof.export_chrome_trace of PyTorch",
        )
    } else if !head.is_empty() && head.iter().all(|byte| *byte == 0) {
        foreign("zero bytes only, as an interrupted copy leaves them", COPY_AGAIN)
    } else {
        None
    }
}

/// A table that `nsys stats` printed.
fn stats(head: &[u8]) -> Option<Foreign> {
    let text = decoded(head);
    STATS.iter().any(|part| text.contains(part)).then(|| Foreign {
        what: "a table of nsys stats".into(),
        remedy: "pass the SQLite export from which it was made",
    })
}

/// A file of no known format, by its first line or bytes: it is not `wanted`.
fn expected(head: &[u8], wanted: &str, remedy: &'static str) -> Foreign {
    let text = decoded(head);
    // The last character may be cut.
    let text = text.trim_end_matches('\u{fffd}').trim_start();
    let what = if head.starts_with(SQLITE) {
        DATABASE.to_owned()
    } else if text.contains(['\0', '\u{fffd}']) {
        let bytes: Vec<String> = head.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        format!("a file of unknown format (first bytes {})", bytes.join(" "))
    } else {
        let line = text.lines().next().unwrap_or_default();
        let line: String = line.chars().filter(|it| !it.is_control()).take(MAX_QUOTED).collect();
        format!("a text (first line \"{line}\")")
    };
    Foreign { what: format!("not {wanted} but {what}"), remedy }
}

/// A name as a shell reads it.
pub fn quoted(name: &str) -> String {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "-_./+=:@,%".contains(it);
    if name.chars().all(is_plain) && !name.starts_with('-') {
        name.to_owned()
    } else {
        format!("'{}'", name.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests;
