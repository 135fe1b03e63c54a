//! Names of files that are not exports of nsys, by their first bytes, with a remedy.

use super::encoding::decoded;

/// Formats that no reader knows, by their first bytes.
const FORMATS: [(&[u8], &str); 8] = [
    (b"PAR1", "a Parquet file; export the report again: nsys export --type sqlite FILE"),
    (b"ARROW1", "an Arrow file; export the report again: nsys export --type sqlite FILE"),
    (b"\x89HDF", "an HDF5 file; export the report again: nsys export --type sqlite FILE"),
    (b"PK\x03\x04", "a zip archive; unpack it"),
    (b"\xfd7zXZ", "packed with xz; unpack it, or pack it with zstd or gzip"),
    (b"\x7fELF", "a program"),
    (b"#!", "a script"),
    (b"version https://git-lfs", "a pointer of Git LFS; fetch the file: git lfs pull"),
];
/// Captures that are not exports, by their first bytes.
const CAPTURES: [(&[u8], &str); 2] = [
    (
        b"NVIDIA Tegra Profiler Report",
        "a report of nsys; export it (nsys export --type sqlite FILE) or import it over HTTP",
    ),
    (
        b"NVR\0",
        "a report of ncu, which has no timeline; print its page (ncu --import FILE --csv --page \
         raw) and pass that with --ncu",
    ),
];
/// Parts of texts that are not exports.
const TEXTS: [(&str, &str); 3] = [
    ("==PROF==", PAGE),
    ("\"Kernel Name\"", PAGE),
    ("Total Time (ns)", "a table of nsys stats; pass the export that it was made from"),
];
const PAGE: &str = "a page of ncu, which has no timeline; pass it with --ncu, next to a timeline";

/// The name of a file that no reader knows, with its remedy.
pub fn format(head: &[u8]) -> Option<&'static str> {
    FORMATS.iter().find(|(start, _)| head.starts_with(start)).map(|it| it.1)
}

/// The name of a file that is not an export of nsys, with its remedy.
pub fn what_is(head: &[u8]) -> &'static str {
    let text = decoded(head);
    let capture = || CAPTURES.iter().find(|(start, _)| head.starts_with(start));
    let of_text = || TEXTS.iter().find(|(part, _)| text.contains(part));
    if let Some(what) = format(head) {
        what
    } else if let Some((_, what)) = capture() {
        what
    } else if let Some((_, what)) = of_text() {
        what
    } else if head.iter().all(|byte| *byte == 0) {
        "only zeros, as of a copy that was cut off; copy it again"
    } else {
        "not an SQLite database"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_export_are_named_with_a_remedy() {
        for (head, named) in [
            (&b"NVIDIA Tegra Profiler Report 1.\n"[..], "nsys export --type sqlite"),
            (b"NVR\0\x0a", "--page raw"),
            (b"PAR1\0\0", "Parquet"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
            (&[0; 100], "only zeros"),
            (b"==PROF== Connected to process 7", "a page of ncu"),
            (b"Processing [r.sqlite]\nTime (%),Total Time (ns),Instances", "nsys stats"),
            (b"\xff\xfe=\0=\0P\0R\0O\0F\0=\0=\0", "a page of ncu"),
            (b"a,b\n1,2\n", "not an SQLite database"),
        ] {
            assert!(what_is(head).contains(named), "{named}: {}", what_is(head));
        }
    }
}
