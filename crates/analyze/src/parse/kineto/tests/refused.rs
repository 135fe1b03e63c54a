//! Text that is not a trace: the error has its place, its cause and a remedy.

use super::*;

#[test]
fn broken_text_is_refused_with_its_place_and_a_remedy() {
    for (text, parts) in [
        (r#"{"traceEvents": [{"ph": "X""#, ["truncated", "byte 27"]),
        ("{\"traceEvents\": [\n{\"name\": \"a \"b\" c\"}]}", ["not JSON at byte", "146900"]),
        (r#"{"traceEvents": [{"ts": 1, "ts": 2}]}"#, ["duplicate field `ts`", "byte 32"]),
        (r#"{"traceEvents": [], "traceEvents": []}"#, ["duplicate field `traceEvents`", "byte"]),
        (r#"{"traceEvents": [[1, 2]]}"#, ["expected an event", "byte"]),
        (r#"{"traceEvents": {"a": 1}}"#, ["expected a list of events", "byte"]),
        (r#"{"nodes": []}"#, ["without traceEvents", "PyTorch"]),
        (r#"{"traceEvents": []}"#, ["no kernel, call of the runtime, operator or range", "0.json"]),
        ("[]", ["no kernel", "0.json"]),
        ("", ["truncated", "byte 0"]),
        ("text", ["not JSON", "byte"]),
        (r#"{"traceEvents": []} x"#, ["not JSON at byte", "a second text starts there"]),
        ("{\"traceEvents\": []}\n{\"traceEvents\": []}", ["not JSON at byte 21", "a second text"]),
        (r#"{"traceEvents": [{"ts": 1}, ]}"#, ["a comma stands before the bracket", "byte 29"]),
        ("{\"ph\": \"X\"}\n{\"ph\": \"X\"}\n", ["one event a line", "'{traceEvents: .}' 0.json >"]),
        ("{\"a\": 1}\n{\"a\": 2}\n", ["without traceEvents", "PyTorch"]),
        (r#"{"traceEvents": [{"dur": NaN}]}"#, ["not JSON at byte", "write null"]),
        (r#"{"traceEvents": [{"dur": -Infinity}]}"#, ["not JSON at byte", "write null"]),
        (r#"{"traceEvents": [{"name": "C:\x"}]}"#, ["not JSON at byte", "write it twice"]),
        ("\u{feff}{\"nodes\": []}", ["without traceEvents", "0.json"]),
    ] {
        let error = read_text(text).unwrap_err();
        assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let base = format!(r#"{{"baseTimeNanoseconds": -5, "traceEvents": [{KERNEL}]}}"#);
    assert!(read_text(&base).unwrap_err().contains("impossible baseTimeNanoseconds -5"));
}

#[test]
fn a_mark_of_utf_8_is_read_and_other_encodings_are_named() {
    let text = format!(r#"{{"traceEvents": [{CALL}, {KERNEL}]}}"#);
    let marked = read_all(&[format!("\u{feff}{text}").as_bytes()]).unwrap();
    assert_eq!(marked.kernels.len(), 1);
    for (mark, bytes) in
        [(0xfeff_u16, u16::to_le_bytes as fn(u16) -> [u8; 2]), (0xfeff, u16::to_be_bytes)]
    {
        let wide: Vec<u8> =
            std::iter::once(mark).chain(text.encode_utf16()).flat_map(bytes).collect();
        let error = read_all(&[&wide]).unwrap_err();
        assert!(error.contains("-f UTF-16 -t UTF-8 0.json > utf-8-0.json"), "{error}");
        let packed = zstd::encode_all(wide.as_slice(), 1).unwrap();
        let error = read_all(&[&packed]).unwrap_err();
        let command = "zstd -dc 0.json | iconv -f UTF-16 -t UTF-8 > utf-8-0.json";
        assert!(error.ends_with(&format!("convert it: {command}")), "{error}");
        let error = read_all(&[&wide[2..]]).unwrap_err();
        let form = if wide[0] == 0xff { "UTF-16LE" } else { "UTF-16BE" };
        assert!(error.contains(&format!("convert it: iconv -f {form} -t")), "{error}");
    }
    let broken = [br#"{"traceEvents": [{"name": ""#.as_slice(), b"\xff\xfe\"}]}"].concat();
    let error = read_all(&[&broken]).unwrap_err();
    assert!(error.contains("not UTF-8 there"), "{error}");
}

#[test]
fn the_place_of_unescaped_quotes_is_their_byte() {
    let text = "{\"traceEvents\": [\n{\"name\": \"a \"b\" c\"}]}";
    let error = read_text(text).unwrap_err();
    let at = text.find("b\" c").unwrap() + 1;
    assert!(error.contains(&format!("byte {at} ")), "{at}: {error}");
}

#[test]
fn calls_of_several_processes_in_one_file_are_refused() {
    let other = CALL.replace("\"pid\": 5", "\"pid\": 8");
    let error = read_text(&format!(r#"{{"traceEvents": [{CALL}, {other}]}}"#)).unwrap_err();
    assert!(error.contains("several processes (5, 8)"), "{error}");
}
