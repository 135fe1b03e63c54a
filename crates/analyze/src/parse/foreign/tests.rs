//! Files of other formats, each with its name and the command in its message.

use std::{fs, io::Write as _};

use super::*;
use crate::parse;

/// The message for a file `name` with these bytes, without its folder.
fn refused(name: &str, bytes: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::write(&path, bytes).unwrap();
    let message = parse::timeline(&[path]).unwrap_err().to_string();
    message.replace(&format!("{}/", dir.path().display()), "")
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

/// The start of an export; its text does not compress into less than a block.
fn database() -> Vec<u8> {
    let noise = (0..40_000_u32).flat_map(|it| it.wrapping_mul(2_654_435_761).to_le_bytes());
    SQLITE.iter().copied().chain(noise).collect()
}

fn tar() -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    bytes[..8].copy_from_slice(b"r.sqlite");
    bytes[257..262].copy_from_slice(b"ustar");
    bytes
}

#[test]
fn a_compressed_export_is_refused_with_the_command_that_decompresses_it() {
    for (name, bytes, message) in [
        ("x.sqlite.gz", gzip(&database()), "gzip; decompress it: gzip -dk x.sqlite.gz"),
        ("x.sqlite.zst", zstd(&database()), "zstd; decompress it: zstd -d x.sqlite.zst"),
        ("a b.gz", gzip(&database()), "gzip; decompress it: gzip -dk 'a b.gz'"),
        (
            "x.sqlite",
            gzip(&database()),
            "gzip; decompress it: gzip -dc x.sqlite > x.sqlite.unpacked",
        ),
    ] {
        let whole = format!("{name}: an SQLite database compressed with {message}");
        assert_eq!(refused(name, &bytes), whole);
    }
}

#[test]
fn other_compressions_are_named_with_their_command() {
    for (name, bytes, message) in [
        ("x.xz", &b"\xfd7zXZ\0\0"[..], "x.xz: compressed with xz; decompress it: xz -dk x.xz"),
        ("x.bz2", b"BZh91AY&SY\0", "compressed with bzip2; decompress it: bzip2 -dk x.bz2"),
        ("x.lz4", b"\x04\x22\x4d\x18\0", "compressed with lz4; decompress it: lz4 -d x.lz4"),
        ("x.zip", b"PK\x03\x04\0", "x.zip: a zip archive; unpack it: unzip x.zip"),
        ("x.tar", &tar(), "x.tar: a tar archive; unpack it: tar xf x.tar"),
        ("x.tgz", &gzip(&tar()), "a tar archive compressed with gzip; unpack it: tar xf x.tgz"),
        ("x.gz", b"\x1f\x8b\x08\0", "compressed with gzip; decompress it: gzip -dk x.gz"),
        ("x.gz", &gzip(&gzip(b"[]")), "compressed twice, gzip in gzip; decompress it once: gzip"),
        ("x.gz", &gzip(b""), "compressed with gzip, but without content; copy or export"),
        ("x.gz", &gzip(b"Total Time (ns)"), "a table of nsys stats, compressed with gzip; pass"),
        ("x.gz", &gzip(b"a,b\n"), "a text (first line \"a,b\"), compressed with gzip; expected"),
    ] {
        let error = refused(name, bytes);
        assert!(error.contains(message), "{message}: {error}");
    }
    let report = refused("x.nsys-rep.zst", &zstd(b"NVIDIA Tegra Profiler Report 1.\n"));
    assert!(report.contains("a report of nsys, compressed with zstd"), "{report}");
    assert!(report.contains("(zstd -d x.nsys-rep.zst), then export it"), "{report}");
    assert!(report.contains("nsys export --type sqlite x.nsys-rep)"), "{report}");
}

#[test]
fn files_that_are_not_captures_are_named_with_a_remedy() {
    for (head, message) in [
        (&b"NVIDIA Tegra Profiler Report 1.\n"[..], "(nsys export --type sqlite x.bin)"),
        (b"NVR\0\x0a", "(ncu --import x.bin --csv --page raw > page.csv)"),
        (b"PAR1\0\0", "a Parquet file; export the report as SQLite: nsys export --type sqlite"),
        (b"\xff\xff\xff\xff\xf0\0\0\0\x10\0\0\0\0\0\x0a\0", "an Arrow stream; export"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        (b"\x7fELF\x02\x01", "a program (ELF); profile it: nsys profile"),
        (b"\x80\x04\x95\x11\0", "a pickle of Python; it has no kernel times"),
        (b"\n<!doctype HTML>\n<title>404", "a page of HTML; download the file itself"),
        (b"\x37\x7f\x06\x82\0", "a write-ahead log of SQLite; pass the database"),
        (&[0; 100], "x.bin: zero bytes only, as an interrupted copy leaves them; copy"),
        (b"", "x.bin: empty (0 bytes); copy or export the file again"),
        (b"SQLite format 3\0\x10\0", "cut short: 18 of at least 512 bytes; copy or export"),
        (b"==PROF== Connected to process 7", "a page of ncu, which has no timeline; pass it"),
        (b"\xff\xfe=\0=\0P\0R\0O\0F\0=\0=\0", "a page of ncu, which has no timeline; pass it"),
        (b"Processing [r.sqlite]\nTime (%),Total Time (ns),Instances", "a table of nsys stats"),
        (b"Start (ns),Duration (ns),CorrId\n", "a table of nsys stats; pass the SQLite export"),
        (b"\xef\xbb\xbfa,b\n1,2\n", "a text (first line \"a,b\"); expected an SQLite export"),
        (b"\xff\xfea\0,\0b\0", "a text (first line \"a,b\"); expected an SQLite export"),
        (b"\x01\0\xfe", "unknown format (first bytes 01 00 fe); expected an SQLite export"),
    ] {
        let error = refused("x.bin", head);
        assert!(error.contains(message), "{message}: {error}");
        assert!(error.starts_with("x.bin: ") && error.lines().count() == 1, "{error}");
    }
    let cut = [[b'a'; 4095].as_slice(), "é".as_bytes()].concat();
    assert!(refused("x.bin", &cut).contains("a text (first line \"aaaa"));
}

#[test]
fn json_that_is_not_a_trace_is_named_with_a_remedy() {
    for (text, message) in [
        (&b"{\"data\":[\"GpuMetrics\"]}"[..], "an export of nsys as JSON; export the report"),
        (b"{\"model_type\": \"llama\"}", "config of a model; pass it with --model-config"),
        (b"{\"a\": 1}", "without traceEvents; expected a trace by prof.export_chrome_trace"),
    ] {
        for bytes in [text.to_vec(), gzip(text), zstd(text)] {
            let error = refused("x.json", &bytes);
            assert!(error.contains(message), "{message}: {error}");
        }
    }
}

#[test]
fn a_file_that_is_not_a_page_of_ncu_is_named_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes, message) in [
        ("x.ncu-rep", &b"NVR\0\x0a"[..], "ncu --import "),
        ("x.csv.gz", &gzip(b"\"ID\",\"Kernel Name\"\n"), "compressed with gzip; decompress it"),
        ("x.sqlite", &database(), "not a page of ncu but an SQLite database; expected a page"),
        ("x.csv", b"Time (%),Total Time (ns)\n", "a table of nsys stats"),
        ("x.csv", b"", "empty (0 bytes)"),
    ] {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        let error = parse::ncu::read_file(&path).unwrap_err().to_string();
        assert!(error.contains(message), "{message}: {error}");
    }
}

#[test]
fn a_text_that_is_not_a_capture_is_refused_with_its_first_line_and_the_accepted_formats() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.txt");
    for text in [b"a,b\n1,2\n".to_vec(), [b"a,b\n".as_slice(), &[b'1'; 9000]].concat()] {
        fs::write(&path, &text).unwrap();
        let as_page = parse::ncu::read_file(&path).unwrap_err().to_string();
        let upload = parse::ncu::check(&path).unwrap_err().to_string();
        for (error, wanted) in [(&as_page, "a page of ncu"), (&upload, "a capture")] {
            let what = format!("not {wanted} but a text (first line \"a,b\"); expected ");
            assert!(error.contains(&what), "{error}");
        }
        for accepted in ["nsys export --type sqlite", "PyTorch", "ncu --import"] {
            assert!(upload.contains(accepted), "{accepted}: {upload}");
        }
        assert!(!as_page.contains("nsys export"), "{as_page}");
    }
    fs::write(&path, "==PROF== Connected to process 7\n").unwrap();
    let empty = parse::ncu::check(&path).unwrap_err().to_string();
    assert!(empty.ends_with("not a page of ncu with a profiled launch"), "{empty}");
}
