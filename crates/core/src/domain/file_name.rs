//! Names of uploaded files, as the service stores them and clients send them.

/// The last component of a path of any system, without control characters, at most 200 characters.
pub fn plain_name(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let kept: String = last.chars().filter(|c| !c.is_control()).take(200).collect();
    if matches!(kept.trim(), "." | "..") { String::new() } else { kept }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_name_is_never_a_path() {
        for (name, plain) in [
            ("a.sqlite", "a.sqlite"),
            ("../../etc/passwd", "passwd"),
            ("C:\\captures\\b.sqlite", "b.sqlite"),
            ("..", ""),
            ("a\nb\u{7f}", "ab"),
            ("\u{1b}[31ma.json", "[31ma.json"),
        ] {
            assert_eq!(plain_name(name), plain);
        }
    }
}
