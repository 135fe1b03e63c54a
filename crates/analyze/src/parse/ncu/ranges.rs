//! NVTX ranges of a launch, from the two columns that ncu prints with the option `--nvtx`.
//!
//! A cell lists threads and their open ranges, outermost first, each in quotes:
//! `DOMAIN:RANGE:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg`.

use llmprof_core::trace::counter::OpenRange;

/// Parts of the headers of the columns.
const COLUMNS: [&str; 2] = ["Domain:Push/Pop_Range:", "Domain:Start/Stop_Range:"];
/// The domain of ranges without one.
const DEFAULT_DOMAIN: &str = "<default domain>";
/// Kinds of messages that repeat the name of the range.
const MESSAGES: [&str; 3] = [":REGISTERED:", ":ASCII:", ":UNICODE:"];
/// Fields between the name and the kind of its message.
const BEFORE_KIND: usize = 4;
/// Fields after the name.
const AFTER_NAME: usize = 6;

/// Indices of the columns with ranges.
pub(super) fn columns(header: &[String]) -> Vec<usize> {
    let is_column = |name: &&str| COLUMNS.iter().any(|part| name.contains(part));
    let names = header.iter().map(String::as_str).enumerate();
    names.filter(|(_, name)| is_column(name)).map(|(at, _)| at).collect()
}

/// The ranges of a cell, outermost first.
pub(super) fn ranges(cell: &str) -> Vec<OpenRange> {
    cell.split('"').skip(1).step_by(2).filter_map(range).collect()
}

fn range(text: &str) -> Option<OpenRange> {
    let kind = MESSAGES.iter().find_map(|kind| text.split_once(kind));
    let (named, fields) = match kind {
        Some((named, _)) => (named, BEFORE_KIND),
        None => (text, AFTER_NAME),
    };
    let named = named.rsplitn(fields + 1, ':').nth(fields)?;
    // A domain may contain colons; so may a name, which its message repeats.
    let of_message = kind.and_then(|(_, message)| named.strip_suffix(message)?.strip_suffix(':'));
    let (domain, name) = match (of_message, kind) {
        (Some(domain), Some((_, message))) => (domain, message),
        _ => named.split_once(':')?,
    };
    let domain = if domain == DEFAULT_DOMAIN { "" } else { domain };
    Some(OpenRange { domain: domain.to_owned(), name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(cell: &str) -> Vec<(String, String)> {
        ranges(cell).into_iter().map(|it| (it.domain, it.name)).collect()
    }

    fn pair(domain: &str, name: &str) -> (String, String) {
        (domain.to_owned(), name.to_owned())
    }

    #[test]
    fn ranges_of_real_reports_are_read_with_their_domains() {
        let cell = "726  \"<default domain>:decode_all:none:none:none:none:none:none\"  \
                    \"<default domain>:decode_step:none:none:none:none:none:none\" ";
        assert_eq!(names(cell), [pair("", "decode_all"), pair("", "decode_step")]);
        let cell = "5903  \"LLM:prefill:none:none:none:none:REGISTERED:prefill\"  \
                    \"LLM.op:vision.sam:none:none:none:none:REGISTERED:vision.sam\" ";
        assert_eq!(names(cell), [pair("LLM", "prefill"), pair("LLM.op", "vision.sam")]);
    }

    #[test]
    fn colons_in_names_and_domains_are_kept() {
        let cell = "1 \"a::b:x:y:none:none:none:none:REGISTERED:x:y\"";
        assert_eq!(names(cell), [pair("a::b", "x:y")]);
        let cell = "1 \"a:x:y:none:none:none:none:none:none\"";
        assert_eq!(names(cell), [pair("a", "x:y")]);
    }

    #[test]
    fn other_text_has_no_ranges() {
        for cell in ["", "7", "\"", "7 \"x\"", "\"::\"", "\"a:b\""] {
            assert_eq!(names(cell), [], "{cell:?}");
        }
    }
}
