//! The period of a sequence, and the occurrences of another one in it, both in linear time.
//!
//! Uses the failure function of Knuth, Morris and Pratt, Fast Pattern Matching in Strings, SIAM J.
//! Comput. 6 (1977).

/// For every prefix, the length of its longest proper border.
fn borders(text: &[u32]) -> Vec<usize> {
    let mut borders = vec![0; text.len()];
    for at in 1..text.len() {
        let mut length = borders[at - 1];
        while length > 0 && text[at] != text[length] {
            length = borders[length - 1];
        }
        borders[at] = length + usize::from(text[at] == text[length]);
    }
    borders
}

/// The length of the shortest sequence whose whole repetitions make `text`; the length of `text` if
/// there is no shorter one.
pub fn period(text: &[u32]) -> usize {
    let shortest = text.len() - borders(text).last().copied().unwrap_or(0);
    if shortest > 0 && text.len().is_multiple_of(shortest) { shortest } else { text.len() }
}

/// Positions of `needle` in `text`, from left to right without overlap.
pub fn occurrences(text: &[u32], needle: &[u32]) -> Vec<usize> {
    let (borders, mut found, mut length) = (borders(needle), Vec::new(), 0);
    if needle.is_empty() {
        return found;
    }
    for (at, value) in text.iter().enumerate() {
        while length > 0 && needle[length] != *value {
            length = borders[length - 1];
        }
        length += usize::from(needle[length] == *value);
        if length == needle.len() {
            found.push(at + 1 - length);
            length = 0;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_divides_the_sequence() {
        assert_eq!(
            (period(&[1, 2, 1, 2]), period(&[1, 2, 1]), period(&[7, 7, 7]), period(&[])),
            (2, 3, 1, 0)
        );
    }

    #[test]
    fn a_sequence_is_found_without_overlap() {
        assert_eq!(occurrences(&[1, 1, 1, 2, 1, 1, 2], &[1, 1, 2]), [1, 4]);
        assert_eq!(occurrences(&[1, 1, 1, 1], &[1, 1]), [0, 2]);
        assert!(occurrences(&[1], &[]).is_empty() && occurrences(&[], &[1]).is_empty());
    }
}
