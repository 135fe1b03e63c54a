//! Checks the sources against the rule that keeps futures from waiting for each other: one that was
//! polled and has not ended is polled until it ends, or is dropped.
//!
//! A future that is kept and not polled may be the next to get a lock, such as the writer of the
//! database. Whatever its owner awaits meanwhile then waits for that lock forever.

use super::sources::{ALL, sources};

/// Functions that keep futures which are polled only while their stream or list is.
const KEEP_FUTURES: &[&str] = &[
    "FuturesUnordered",
    "FuturesOrdered",
    "join_all(",
    "select_all(",
    "buffered(",
    "buffer_unordered(",
    "for_each_concurrent(",
    "now_or_never(",
    "poll!(",
    // Rows that are read one by one keep their connection.
    ".fetch(",
];
/// Files that poll by themselves, each kept future whenever they are polled.
const POLLING: &[&str] = &[
    "crates/service/src/http/auth/recheck.rs",
    "crates/service/src/runtime.rs",
    "crates/service/src/http/connection/mod.rs",
    "crates/service/src/http/connection/stream.rs",
];

/// The text in the brackets that `code` starts with, and the text after them.
fn bracketed(code: &str) -> (&str, &str) {
    let (mut depth, mut quoted, mut escaped) = (0_i32, false, false);
    for (at, it) in code.char_indices() {
        match it {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '(' | '[' | '{' if !quoted => depth += 1,
            ')' | ']' | '}' if !quoted => {
                depth -= 1;
                if depth == 0 {
                    return (&code[1..at], &code[at + 1..]);
                }
            }
            _ => {}
        }
    }
    panic!("no closing bracket: {:.80}", code);
}

/// Position of `wanted` outside of brackets and strings.
fn outside(code: &str, wanted: &str) -> Option<usize> {
    let mut at = 0;
    while at < code.len() {
        let rest = &code[at..];
        if rest.starts_with(wanted) {
            return Some(at);
        }
        at += match rest.chars().next()? {
            '(' | '[' | '{' => rest.len() - bracketed(rest).1.len(),
            '"' => rest[1..].find('"')? + 2,
            it => it.len_utf8(),
        };
    }
    None
}

/// The branches of a `select!`: future with its condition, and handler.
fn branches(body: &str) -> Vec<(&str, &str)> {
    let mut rest = body.trim().strip_prefix("biased;").unwrap_or(body).trim();
    let mut found = Vec::new();
    while let Some(arrow) = outside(rest, "=>") {
        let (head, after) = (&rest[..arrow], rest[arrow + 2..].trim_start());
        let block = after.starts_with('{').then(|| bracketed(after));
        let (handler, left) = block.unwrap_or_else(|| {
            let end = outside(after, ",").unwrap_or(after.len());
            after.split_at(end)
        });
        let future = head.split_once('=').map_or(head, |(_, future)| future);
        found.push((future.trim(), handler));
        rest = left.trim_start().trim_start_matches(',').trim_start();
    }
    found
}

/// Violations of the rule in `code`.
fn violations(code: &str, polls: bool) -> Vec<String> {
    let mut found = Vec::new();
    for after in code.split("select!").skip(1) {
        let Some(body) = after.trim_start().strip_prefix('{').map(|_| after.trim_start()) else {
            continue;
        };
        for (future, handler) in branches(bracketed(body).0) {
            if handler.contains(".await") {
                found.push(format!("a branch of select! awaits after {future:.60}"));
            }
            if future.starts_with("&mut ") || future.contains(".as_mut()") {
                found.push(format!("select! borrows {future:.60}"));
            }
        }
    }
    for after in code.split("pin!").skip(1) {
        if after.starts_with('(') && !bracketed(after).0.ends_with(".notified()") {
            found.push(format!("pin!{:.60}", after));
        }
    }
    if code.contains("Box::pin(") && !polls {
        found.push("Box::pin".into());
    }
    found.extend(KEEP_FUTURES.iter().filter(|it| code.contains(*it)).map(|it| (*it).to_owned()));
    found
}

#[test]
fn no_future_is_kept_unpolled_while_another_is_awaited() {
    let (mut found, mut selects, mut polling) = (Vec::new(), 0, 0);
    for source in sources(ALL) {
        let path = source.path();
        selects += source.code.matches("select! {").count();
        let polls = POLLING.contains(&path.as_str());
        polling += usize::from(polls);
        found.extend(violations(&source.code, polls).iter().map(|it| format!("{path}: {it}")));
    }
    assert_eq!(polling, POLLING.len());
    assert!(selects > 20, "only {selects} select! found");
    assert!(found.is_empty(), "await these after their futures have ended:\n{}", found.join("\n"));
}

#[test]
fn each_way_to_keep_a_future_unpolled_is_found() {
    let awaits = "select! {\n () = &mut run => break,\n _ = hold.ends(), if !ending => {\n \
                  ending = true;\n self.set_state(Ending).await;\n }\n}";
    assert_eq!(
        violations(awaits, false),
        ["select! borrows &mut run", "a branch of select! awaits after hold.ends(), if !ending"]
    );
    let fine = "let it = select! {\n it = server.read(\"=> , }\") => it.map(|it| f(it, 1)),\n \
                () = async { hold.ends().await; stop().await } => return,\n};\n\
                let woken = pin!(queued.notified()); it.await";
    assert_eq!(violations(fine, false), [""; 0]);
    assert_eq!(violations("let run = pin!(run(a, b));", false), ["pin!(run(a, b));"]);
    assert_eq!(violations("Box::pin(run())", false), ["Box::pin"]);
    assert_eq!(violations("Box::pin(run())", true), [""; 0]);
    assert_eq!(violations("let all = join_all(runs).await;", false), ["join_all("]);
}
