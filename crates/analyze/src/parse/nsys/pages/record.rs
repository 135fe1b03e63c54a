//! Integers of the records in the cells of a page.
//!
//! A record starts with a header: its length and the type of each column. Millions of rows share a
//! few headers, so the places of the requested columns are computed once per header and reused.

/// Number of headers whose places are kept; a power of two.
const KEPT: usize = 128;
/// Maximum length of a kept header: a kernel's header has about 30 bytes.
const MAX_WORDS: usize = 8;
const WORD: usize = size_of::<u64>();

/// The value of a column of integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    Null,
    Is(i64),
    /// A text, a fraction, or bytes.
    Other,
}

/// Source of a value in a record.
#[derive(Debug, Clone, Copy)]
enum ValueSource {
    /// The type alone is the value.
    Type(Number),
    /// An integer that ends this far from the start of the record; the high bits of the word that
    /// ends there are unused.
    Bytes { end: u32, unused: u32 },
}

/// Places of the requested columns in records with one header.
#[derive(Debug, Clone)]
struct RecordPlaces<const N: usize> {
    /// Minimum length of the record.
    length: usize,
    sources: [ValueSource; N],
}

/// The places for a header, which is filled with zeros.
#[derive(Debug, Clone)]
struct KeptPlaces<H, const N: usize> {
    header: H,
    places: RecordPlaces<N>,
}

/// Reader of the records of one table.
pub struct Records<const N: usize> {
    /// For each column up to the last requested one, the index of its value.
    slots: Vec<Option<usize>>,
    /// Places by header, of short and of other records. An unused entry has header zero, which no
    /// record has.
    short: Box<[KeptPlaces<u64, N>; KEPT]>,
    long: Box<[KeptPlaces<[u64; MAX_WORDS], N>; KEPT]>,
    /// Places for the latest header that is not kept.
    unkept: Option<RecordPlaces<N>>,
}

/// One record, whose requested integers are decoded when they are read.
pub struct Record<'a, const N: usize> {
    page: &'a [u8],
    /// Start of the record in the page.
    at: usize,
    places: &'a RecordPlaces<N>,
}

impl<const N: usize> Records<N> {
    /// A reader of the columns at `places`.
    pub fn of(places: [Option<usize>; N]) -> Self {
        let mut slots = vec![None; places.iter().flatten().max().map_or(0, |last| last + 1)];
        for (slot, place) in places.iter().enumerate() {
            if let Some(place) = place {
                slots[*place] = Some(slot);
            }
        }
        let places = RecordPlaces { length: 0, sources: [ValueSource::Type(Number::Null); N] };
        let short = std::array::from_fn(|_| KeptPlaces { header: 0, places: places.clone() });
        let long =
            std::array::from_fn(|_| KeptPlaces { header: [0; MAX_WORDS], places: places.clone() });
        Self { slots, short: Box::new(short), long: Box::new(long), unkept: None }
    }

    /// Finds the requested columns of the record in the cell at `cell`; columns that were added
    /// later are null. Returns `None` if it is invalid or continues on other pages.
    #[inline(always)]
    pub fn find<'a>(&'a mut self, page: &'a [u8], cell: usize) -> Option<Record<'a, N>> {
        let Some(ShortRecord { at, length, header }) = ShortRecord::of(page, cell) else {
            return self.find_long(page, cell);
        };
        let kept = &mut self.short[place_of(header)];
        if kept.header != header {
            let record = page.get(at..at + length)?;
            *kept = KeptPlaces { header, places: places(record, &self.slots)? };
        }
        (length >= kept.places.length).then_some(Record { page, at, places: &kept.places })
    }

    /// The same for a record of any length.
    fn find_long<'a>(&'a mut self, page: &'a [u8], cell: usize) -> Option<Record<'a, N>> {
        let (length, at) = varint(page, cell)?;
        let at = after_varint(page, at)?;
        let length = usize::try_from(length).ok()?;
        // A longer record overflows; rows of integers never do. The header of the page precedes
        // all cells.
        if length > page.len() - 35 || cell < WORD {
            return None;
        }
        let record = page.get(at..at + length)?;
        let places = if let Some(header) = long_header(page, at) {
            let hash = header.iter().fold(0u64, |hash, word| hash.rotate_left(5) ^ word);
            let kept = &mut self.long[place_of(hash)];
            if kept.header != header {
                *kept = KeptPlaces { header, places: places(record, &self.slots)? };
            }
            &kept.places
        } else {
            self.unkept.insert(places(record, &self.slots)?)
        };
        (length >= places.length).then_some(Record { page, at, places })
    }
}

impl<const N: usize> Record<'_, N> {
    /// The value of the requested column at `place`.
    #[inline(always)]
    pub fn number(&self, place: usize) -> Number {
        match self.places.sources[place] {
            ValueSource::Type(number) => number,
            ValueSource::Bytes { end, unused } => {
                Number::Is(integer(self.page, self.at + end as usize, unused))
            }
        }
    }
}

/// Place of a header among those kept, by a number of it.
#[inline(always)]
fn place_of(number: u64) -> usize {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    (number.wrapping_mul(FACTOR) >> (u64::BITS - KEPT.ilog2())) as usize
}

/// A record of less than 128 bytes with a header of one word, such as a sample, in a cell that does
/// not end the page.
struct ShortRecord {
    /// Start in the page.
    at: usize,
    length: usize,
    header: u64,
}

impl ShortRecord {
    /// The record in the cell at `cell`, by two loads: of its length and the row's number, and of
    /// the header.
    #[inline(always)]
    fn of(page: &[u8], cell: usize) -> Option<Self> {
        /// The bit that is clear in the last byte of a number, of each byte but the first.
        const CONTINUES: u64 = 0x8080_8080_8080_8000;
        let bytes: &[u8; 2 * WORD] = page.get(cell..)?.first_chunk()?;
        let word = u64::from_le_bytes(*bytes.first_chunk()?);
        let (length, last) = ((word & 0xff) as usize, !word & CONTINUES);
        if length >= 0x80 || last == 0 || cell < WORD {
            return None;
        }
        let before = (last.trailing_zeros() / 8) as usize + 1;
        let word = u64::from_be_bytes(*bytes.get(before..before + WORD)?.first_chunk()?);
        let bytes @ 1..=WORD = (word >> (u64::BITS - 8)) as usize else { return None };
        let (at, unused) = (cell + before, 8 * (WORD - bytes) as u32);
        let header = word >> unused << unused;
        (at + length <= page.len()).then_some(Self { at, length, header })
    }
}

/// The header of the record at `at`; `None` for one that is not kept.
#[inline(always)]
fn long_header(page: &[u8], at: usize) -> Option<[u64; MAX_WORDS]> {
    let length = usize::from(*page.get(at)?);
    let words = length.div_ceil(WORD);
    if length == 0 || words > MAX_WORDS {
        return None;
    }
    let bytes = page.get(at..at + words * WORD)?;
    let mut header = [0; MAX_WORDS];
    for (word, bytes) in header.iter_mut().zip(bytes.chunks_exact(WORD)) {
        *word = u64::from_be_bytes(*bytes.first_chunk()?);
    }
    let unused = 8 * (words * WORD - length) as u32;
    header[words - 1] = header[words - 1] >> unused << unused;
    Some(header)
}

/// Places of the columns in `slots` in records with the header of `record`.
fn places<const N: usize>(record: &[u8], slots: &[Option<usize>]) -> Option<RecordPlaces<N>> {
    let mut sources = [ValueSource::Type(Number::Null); N];
    let (header, mut at) = varint(record, 0)?;
    let mut end = usize::try_from(header).ok()?;
    let types = record.get(..end)?;
    for slot in slots {
        if at == types.len() {
            break;
        }
        let (kind, next) = varint(types, at)?;
        at = next;
        let length = length_of(kind)?;
        end = end.checked_add(length)?;
        if end > record.len() {
            return None;
        }
        if let Some(slot) = slot {
            sources[*slot] = match kind {
                0 => ValueSource::Type(Number::Null),
                8 => ValueSource::Type(Number::Is(0)),
                9 => ValueSource::Type(Number::Is(1)),
                1..=6 => ValueSource::Bytes { end: end as u32, unused: 64 - 8 * length as u32 },
                _ => ValueSource::Type(Number::Other),
            };
        }
    }
    Some(RecordPlaces { length: end, sources })
}

/// Length of a value of this type in a record, bytes.
fn length_of(kind: u64) -> Option<usize> {
    const SHORT: [usize; 10] = [0, 1, 2, 3, 4, 6, 8, 8, 0, 0];
    match kind {
        0..=9 => Some(SHORT[kind as usize]),
        10 | 11 => None,
        _ => usize::try_from((kind - 12) / 2).ok(),
    }
}

/// The integer that ends at `end`, of a page: the low bits of the eight bytes before.
#[inline(always)]
fn integer(page: &[u8], end: usize, unused: u32) -> i64 {
    let word = page.get(end - WORD..end).and_then(|bytes| bytes.first_chunk());
    let word = word.map_or(0, |bytes| u64::from_be_bytes(*bytes));
    (word << unused).cast_signed() >> unused
}

/// A number of one to nine bytes, and its end.
#[inline(always)]
pub(super) fn varint(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let first = *bytes.get(at)?;
    if first < 0x80 { Some((first.into(), at + 1)) } else { long_varint(bytes, at) }
}

/// The end of a number, which is not decoded.
fn after_varint(bytes: &[u8], at: usize) -> Option<usize> {
    /// The bit that is set in all bytes but the last.
    const CONTINUES: u64 = 0x8080_8080_8080_8080;
    if let Some(word) = bytes.get(at..at + WORD).and_then(|bytes| bytes.first_chunk()) {
        let last = !u64::from_le_bytes(*word) & CONTINUES;
        // All eight continue in a number of nine bytes.
        return Some(at + (last.trailing_zeros() / 8) as usize + 1);
    }
    let mut end = at;
    while *bytes.get(end)? >= 0x80 && end < at + 8 {
        end += 1;
    }
    Some(end + 1)
}

/// The same for a number of several bytes.
fn long_varint(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let mut value = 0;
    for place in 0..8 {
        let byte = *bytes.get(at + place)?;
        value = value << 7 | u64::from(byte & 0x7f);
        if byte < 0x80 {
            return Some((value, at + place + 1));
        }
    }
    Some((value << 8 | u64::from(*bytes.get(at + 8)?), at + 9))
}
