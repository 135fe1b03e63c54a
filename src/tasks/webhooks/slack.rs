//! Messages in the format of Slack's incoming webhooks: one line of text.

use serde_json::{Value, json};

/// The message for the body of a signed one.
pub(super) fn message(body: &str) -> Value {
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    let text = |name: &str| escaped(body[name].as_str().unwrap_or_default());
    let mode = body["mode"].as_str().map(|mode| format!(" in mode {}", escaped(mode)));
    let reason = body["message"].as_str().map(|reason| format!(": {}", escaped(reason)));
    let line = format!(
        "Run {}{} ended {}{} ({})",
        text("name"),
        mode.unwrap_or_default(),
        text("state"),
        reason.unwrap_or_default(),
        text("link"),
    );
    json!({ "text": line })
}

/// Escapes the characters that Slack reserves, so that text has no mentions and links.
fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_without_mentions_and_links() {
        let body = json!({
            "event": "run_ended", "name": "<!channel> & co", "mode": "basic", "state": "failed",
            "message": "no\nGPU <http://evil.example|here>", "link": "/runs/1",
        });
        assert_eq!(
            message(&body.to_string()),
            json!({ "text": "Run &lt;!channel&gt; &amp; co in mode basic ended failed: no GPU \
                             &lt;http://evil.example|here&gt; (/runs/1)" })
        );
        let import = json!({ "name": "a.sqlite", "mode": null, "state": "succeeded",
            "message": null, "link": "/runs/2" });
        let text = "Run a.sqlite ended succeeded (/runs/2)";
        assert_eq!(message(&import.to_string()), json!({ "text": text }));
    }
}
