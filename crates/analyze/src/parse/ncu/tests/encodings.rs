//! Pages as shells of Windows write them, and empty ones with the reason of ncu.

use super::*;

#[test]
fn a_page_of_windows_reads_the_same_and_an_empty_one_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let read = |bytes: &[u8]| {
        let path = dir.path().join("page.csv");
        std::fs::write(&path, bytes).unwrap();
        read_file(&path)
    };
    let text = "\"ID\",\"Kernel Name\",\"Block Size\",\"Grid Size\",\"gpu__time_duration.sum\"\n\
                \"\",\"\",\"\",\"\",\"ns\"\n\"0\",\"gemm\",\"(1, 1, 1)\",\"(2, 1, 1)\",\"1,000\"\n";
    let plain = read(text.as_bytes()).unwrap();
    let marked = std::iter::once(0xfeff).chain(text.encode_utf16());
    for bytes in [u16::to_le_bytes, u16::to_be_bytes] {
        let wide: Vec<u8> = marked.clone().flat_map(bytes).collect();
        assert_eq!(read(&wide).unwrap(), plain);
    }
    assert_eq!(read(["\u{feff}", text].concat().as_bytes()).unwrap(), plain);
    let error = |text: &str| read(text.as_bytes()).unwrap_err().to_string();
    let refused = error("==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - The user has no right\n");
    assert!(refused.contains("NVreg_RestrictProfilingToAdminUsers=0"), "{refused}");
    let other = error("==PROF== Connected\n==ERROR== The application returned 1\n");
    assert!(other.contains("profiled launch: ==ERROR== The application returned 1"), "{other}");
}
