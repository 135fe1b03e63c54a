//! Messages in the format of Slack's incoming webhooks: one line of text.

use llmprof_core::domain::{visible::one_line, webhook_event::WebhookEvent};
use serde_json::{Value, json};

/// The message for the body of a signed one.
pub(super) fn message(body: &str) -> Value {
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    let text = |name: &str| escaped(body[name].as_str().unwrap_or_default());
    let event = body["event"].as_str().unwrap_or_default().parse();
    let line = match event.unwrap_or(WebhookEvent::RunEnded) {
        WebhookEvent::RunEnded => run_ended(&body, text),
        WebhookEvent::GateFailed => format!(
            "Gate against {} failed: {} ({})",
            text("baseline"),
            text("message"),
            text("link")
        ),
        WebhookEvent::RegressionFound => {
            let device = body["device"].as_str().map(|device| format!(" on {}", escaped(device)));
            let (name, device) = (text("name"), device.unwrap_or_default());
            format!("Runs of {name}{device} became worse: {} ({})", text("message"), text("link"))
        }
    };
    json!({ "text": line })
}

fn run_ended(body: &Value, text: impl Fn(&str) -> String) -> String {
    let mode = body["mode"].as_str().map(|mode| format!(" in mode {}", escaped(mode)));
    let reason = body["message"].as_str().map(|reason| format!(": {}", escaped(reason)));
    format!(
        "Run {}{} ended {}{} ({})",
        text("name"),
        mode.unwrap_or_default(),
        text("state"),
        reason.unwrap_or_default(),
        text("link"),
    )
}

/// Escapes the characters that Slack reserves, so that text has no mentions and links.
fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    one_line(&text)
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

    #[test]
    fn a_regression_is_one_line_with_its_figures() {
        let gate = json!({ "event": "gate_failed", "baseline": "main", "link": "/runs/1/diff/2",
            "message": "MFU: worse by 5.07 %, beyond noise <!here>" });
        assert_eq!(
            message(&gate.to_string()),
            json!({ "text": "Gate against main failed: MFU: worse by 5.07 %, beyond noise \
                             &lt;!here&gt; (/runs/1/diff/2)" })
        );
        let found = |device: Value| {
            json!({ "event": "regression_found", "name": "tiny", "device": device,
                "message": "MFU: 31 -> 29 %", "link": "/series/1" })
        };
        let [named, unnamed] = [found(json!("H200")), found(Value::Null)];
        let text = "Runs of tiny on H200 became worse: MFU: 31 -&gt; 29 % (/series/1)";
        assert_eq!(message(&named.to_string()), json!({ "text": text }));
        let text = "Runs of tiny became worse: MFU: 31 -&gt; 29 % (/series/1)";
        assert_eq!(message(&unnamed.to_string()), json!({ "text": text }));
    }
}
