//! Sentences that several facts of the first page share, such as a remedy: each stands once.

use std::collections::BTreeSet;

/// The sentences that stand on a page.
#[derive(Debug, Default)]
pub struct StatedSentences(BTreeSet<String>);

impl StatedSentences {
    pub fn add(&mut self, text: &str) {
        self.0.extend(sentences(text).map(key));
    }

    /// The text without sentences that stand on the page; its others stand there from now on.
    pub fn rest(&mut self, text: &str) -> String {
        let rest: String = sentences(text).filter(|it| self.0.insert(key(it))).collect();
        rest.trim_end().to_owned()
    }
}

fn sentences(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(". ")
}

/// A sentence without its end, which the last one of a text may lack.
fn key(sentence: &str) -> String {
    sentence.trim_end().trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_that_stands_on_the_page_is_left_out_of_later_texts() {
        let mut stated = StatedSentences::default();
        stated.add("Decode takes 3.5 ms. Raise repeats.");
        assert_eq!(stated.rest("Prefill varies. Raise repeats."), "Prefill varies.");
        assert_eq!(stated.rest("Prefill varies"), "");
        assert_eq!(stated.rest("Decode takes 3.5 s. It varies."), "Decode takes 3.5 s. It varies.");
    }
}
