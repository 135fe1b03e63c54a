//! Names of files that are not exports of nsys, by their first bytes, with a remedy.

/// Starts of files that are often taken for an export.
const KNOWN: [(&[u8], &str); 10] = [
    (
        b"NVIDIA Tegra Profiler Report",
        "a report of nsys; export it (nsys export --type sqlite FILE) or import it over HTTP",
    ),
    (
        b"NVR\0",
        "a report of ncu, which has no timeline; print its page (ncu --import FILE --csv --page \
         raw) and pass that with --ncu",
    ),
    (b"PAR1", "a Parquet file; export the report again: nsys export --type sqlite FILE"),
    (b"ARROW1", "an Arrow file; export the report again: nsys export --type sqlite FILE"),
    (b"\x89HDF", "an HDF5 file; export the report again: nsys export --type sqlite FILE"),
    (b"PK\x03\x04", "a zip archive; unpack it"),
    (b"\xfd7zXZ", "packed with xz; unpack it"),
    (b"\x7fELF", "a program"),
    (b"\xff\xfe", "text in UTF-16; convert it: iconv -f UTF-16 -t UTF-8 FILE"),
    (b"\xfe\xff", "text in UTF-16; convert it: iconv -f UTF-16 -t UTF-8 FILE"),
];
/// Parts of texts that are often taken for an export.
const TEXTS: [(&[u8], &str); 3] = [
    (b"==PROF==", "a page of ncu, which has no timeline; pass it with --ncu, next to a timeline"),
    (
        b"\"Kernel Name\"",
        "a page of ncu, which has no timeline; pass it with --ncu, next to a timeline",
    ),
    (b"Total Time (ns)", "a table of nsys stats; pass the export that it was made from"),
];

/// The name of a file with this head, and its remedy.
pub fn what_is(head: &[u8]) -> &'static str {
    let contains = |part: &[u8]| head.windows(part.len()).any(|window| window == part);
    if let Some((_, what)) = KNOWN.iter().find(|(start, _)| head.starts_with(start)) {
        what
    } else if let Some((_, what)) = TEXTS.iter().find(|(part, _)| contains(part)) {
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
            (&[0; 100], "only zeros"),
            (b"==PROF== Connected to process 7", "a page of ncu"),
            (b"Processing [r.sqlite]\nTime (%),Total Time (ns),Instances", "nsys stats"),
            (b"a,b\n1,2\n", "not an SQLite database"),
        ] {
            assert!(what_is(head).contains(named), "{named}: {}", what_is(head));
        }
    }
}
