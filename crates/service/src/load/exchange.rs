//! The record of one response, from the bytes of its stream and their times of arrival.

use llmprof_core::trace::requests::{RequestFailure, RequestRecord};

use super::{
    chunk::{ChunkEvent, read_event},
    sse::EventParser,
};

/// A response under way.
#[derive(Debug)]
pub struct ResponseRecord {
    record: RequestRecord,
    parser: EventParser,
    is_done: bool,
    done_ns: Option<i64>,
}

impl ResponseRecord {
    pub fn new(record: RequestRecord) -> Self {
        Self { record, parser: EventParser::default(), is_done: false, done_ns: None }
    }

    pub fn status(&mut self, status: u16) {
        self.record.status = Some(status);
    }

    /// True after the last event.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Reads bytes that arrived at `now`.
    pub fn read(&mut self, bytes: &[u8], now: i64) -> Result<(), (RequestFailure, String)> {
        let (record, is_done) = (&mut self.record, &mut self.is_done);
        let mut failed = None;
        let read = self.parser.read(bytes, |event| {
            if failed.is_some() || *is_done {
                return;
            }
            match read_event(event.data, event.is_error) {
                ChunkEvent::Chunk(chunk) => {
                    if chunk.has_output {
                        record.first_token_ns.get_or_insert(now);
                        record.token_ns.push(now);
                    }
                    record.finish = chunk.finish.or_else(|| record.finish.take());
                    record.prompt_tokens = chunk.prompt_tokens.or(record.prompt_tokens);
                    record.completion_tokens = chunk.completion_tokens.or(record.completion_tokens);
                }
                ChunkEvent::Done => *is_done = true,
                ChunkEvent::Error(message) => {
                    failed = Some((RequestFailure::ServerError, message));
                }
                ChunkEvent::Unreadable(message) => {
                    failed = Some((RequestFailure::Unreadable, message));
                }
            }
        });
        if *is_done {
            self.done_ns.get_or_insert(now);
        }
        match (failed, read) {
            (Some(failed), _) => Err(failed),
            (None, Err(error)) => Err((RequestFailure::TooLarge, error.to_string())),
            (None, Ok(())) => Ok(()),
        }
    }

    /// Checks a stream that has ended.
    pub fn end(&self) -> Result<(), (RequestFailure, String)> {
        if self.is_done || self.record.finish.is_some() {
            return Ok(());
        }
        let message = "the stream ended without [DONE] and without a finish_reason".to_owned();
        Err((RequestFailure::EndedEarly, message))
    }

    /// The record of the ended exchange. A complete stream ended with its last event.
    pub fn finish(
        mut self,
        failed: Option<(RequestFailure, String)>,
        ended_ns: i64,
    ) -> RequestRecord {
        self.record.ended_ns = self.done_ns.unwrap_or(ended_ns);
        // Tokens without text, such as parts of a character, have no event.
        let has_output = self.record.output_tokens() > 0;
        let failed = failed.or_else(|| {
            let message = "the stream has no output".to_owned();
            (!has_output).then_some((RequestFailure::NoTokens, message))
        });
        if let Some((failure, message)) = failed {
            self.record.failure = Some(failure);
            self.record.message = Some(message);
        }
        self.record
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    const USAGE: &str =
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":2}}\n\n";
    const DONE: &str = "data: [DONE]\n\n";

    fn record(pieces: &[(&str, i64)]) -> RequestRecord {
        let mut response = ResponseRecord::new(RequestRecord::default());
        let read = pieces.iter().try_for_each(|(text, at)| response.read(text.as_bytes(), *at));
        let ended = read.and_then(|()| response.end());
        response.finish(ended.err(), 99)
    }

    #[test]
    fn a_complete_stream_has_the_times_of_its_tokens_and_the_counts_of_the_server() {
        let (head, tail) = TOKEN.split_at(9);
        let found = record(&[(head, 10), (tail, 20), (TOKEN, 30), (USAGE, 31), (DONE, 32)]);
        assert_eq!((found.first_token_ns, found.ended_ns), (Some(20), 32));
        assert_eq!(found.token_ns, [20, 30]);
        assert_eq!((found.prompt_tokens, found.completion_tokens), (Some(4), Some(2)));
        assert_eq!(found.failure, None);
    }

    #[test]
    fn each_way_to_fail_has_its_reason_and_keeps_the_tokens_before_it() {
        let failures = [
            (vec![(TOKEN, 1)], RequestFailure::EndedEarly),
            (vec![(TOKEN, 1), ("data: <html>\n\n", 2)], RequestFailure::Unreadable),
            (vec![(TOKEN, 1), ("data: {\"error\":\"x\"}\n\n", 2)], RequestFailure::ServerError),
            (vec![(TOKEN, 1), ("event: error\ndata: x\n\n", 2)], RequestFailure::ServerError),
        ];
        for (pieces, failure) in failures {
            let found = record(&pieces);
            assert_eq!((found.failure, found.token_ns.len()), (Some(failure), 1), "{pieces:?}");
            assert_eq!(found.ended_ns, 99);
        }
        assert_eq!(record(&[(DONE, 1)]).failure, Some(RequestFailure::NoTokens));
        let huge = format!("data: {}", "x".repeat(2 << 20));
        assert_eq!(record(&[(&huge, 1)]).failure, Some(RequestFailure::TooLarge));
    }

    #[test]
    fn bytes_after_the_last_event_do_not_count() {
        let found = record(&[(&format!("{TOKEN}{DONE}{TOKEN}data: <html>\n\n"), 5)]);
        assert_eq!((found.failure, found.token_ns.len()), (None, 1));
    }
}
