//! Schedule of a load: times of arrivals and contents of requests, all from one seed.
//!
//! Pure: the same seed gives the same requests.

use std::time::Duration;

/// Pseudo-random numbers by splitmix64 (Steele, Lea and Flood 2014).
#[derive(Debug, Clone)]
pub struct SeededNumbers(u64);

impl SeededNumbers {
    /// The numbers of one stream of a seed.
    pub fn of(seed: u64, stream: u64) -> Self {
        let mut numbers = Self(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        numbers.draw();
        numbers
    }

    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in 0..1.
    pub fn fraction(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// An integer below `bound`, which is not 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u32
    }
}

/// Intended times of a Poisson process, since the start of the load.
#[derive(Debug, Clone)]
pub struct Arrivals {
    numbers: SeededNumbers,
    rate_per_s: f64,
    at_s: f64,
}

impl Arrivals {
    /// Arrivals at a mean rate, which is positive.
    pub fn poisson(seed: u64, rate_per_s: f64) -> Self {
        Self { numbers: SeededNumbers::of(seed, u64::MAX), rate_per_s, at_s: 0.0 }
    }
}

impl Iterator for Arrivals {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let now = Duration::try_from_secs_f64(self.at_s).ok();
        // Gaps between arrivals are exponential: -ln(1 - u) / rate, u in 0..1.
        self.at_s += -(1.0 - self.numbers.fraction()).ln() / self.rate_per_s;
        now
    }
}

/// Short words, most of them one token of common vocabularies.
const WORDS: [&str; 64] = [
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
    "country",
    "problem",
    "hand",
    "part",
    "place",
    "case",
    "week",
    "company",
    "system",
    "program",
    "question",
    "work",
    "government",
    "number",
    "night",
    "point",
    "home",
    "water",
    "room",
    "mother",
    "area",
    "money",
    "story",
    "fact",
    "month",
    "lot",
    "right",
    "study",
    "book",
    "eye",
    "job",
    "word",
    "business",
    "issue",
    "side",
    "kind",
    "head",
    "house",
    "service",
    "friend",
    "father",
    "power",
    "hour",
    "game",
    "line",
    "end",
    "city",
    "name",
];

/// A prompt of `words` words. Prompts of different requests share no start, so a server's prefix
/// cache does not serve them.
pub fn prompt_words(seed: u64, request: u64, words: u32) -> String {
    let mut numbers = SeededNumbers::of(seed, request);
    let word = |numbers: &mut SeededNumbers| WORDS[numbers.below(WORDS.len() as u32) as usize];
    (0..words).map(|_| word(&mut numbers)).collect::<Vec<_>>().join(" ")
}

/// A prompt of exactly `tokens` tokens with ids from 3 to below `vocabulary`; the first ids are
/// special tokens of most models.
pub fn prompt_ids(seed: u64, request: u64, tokens: u32, vocabulary: u32) -> Vec<u32> {
    let mut numbers = SeededNumbers::of(seed, request);
    let first = 3.min(vocabulary.saturating_sub(1));
    (0..tokens).map(|_| first + numbers.below((vocabulary - first).max(1))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_have_the_requested_rate_and_exponential_gaps() {
        let times: Vec<f64> =
            Arrivals::poisson(7, 200.0).take(20_001).map(|it| it.as_secs_f64()).collect();
        assert_eq!(times[0], 0.0);
        let gaps: Vec<f64> = times.windows(2).map(|it| it[1] - it[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        assert!((mean * 200.0 - 1.0).abs() < 0.03, "{mean}");
        // An exponential gap is longer than its mean with a probability of 1/e.
        let longer = gaps.iter().filter(|gap| **gap > 1.0 / 200.0).count() as f64 / 20_000.0;
        assert!((longer - (-1.0_f64).exp()).abs() < 0.02, "{longer}");
    }

    #[test]
    fn a_seed_repeats_its_requests_and_another_does_not() {
        let times = |seed| Arrivals::poisson(seed, 10.0).take(50).collect::<Vec<_>>();
        assert_eq!(times(1), times(1));
        assert_ne!(times(1), times(2));
        assert_eq!(prompt_words(1, 5, 40), prompt_words(1, 5, 40));
        assert_ne!(prompt_words(1, 5, 40), prompt_words(1, 6, 40));
        assert_ne!(prompt_words(1, 5, 40), prompt_words(2, 5, 40));
        assert_eq!(prompt_words(1, 5, 40).split(' ').count(), 40);
    }

    #[test]
    fn ids_are_within_the_vocabulary_and_as_many_as_requested() {
        for vocabulary in [1, 2, 4, 32_000] {
            let ids = prompt_ids(3, 0, 500, vocabulary);
            assert_eq!(ids.len(), 500);
            assert!(ids.iter().all(|id| *id < vocabulary), "{vocabulary}: {ids:?}");
        }
    }
}
