//! A decoder of the Perfetto trace format, independent of the writer.

use std::collections::HashMap;

/// A value of the wire format.
#[derive(Debug, Clone, PartialEq)]
pub enum Wire {
    Number(u64),
    Double(f64),
    Bytes(Vec<u8>),
}

impl Wire {
    fn number(&self) -> u64 {
        let Self::Number(value) = self else { panic!("{self:?} is not a number") };
        *value
    }

    fn text(&self) -> String {
        let Self::Bytes(bytes) = self else { panic!("{self:?} is not a text") };
        String::from_utf8(bytes.clone()).unwrap()
    }

    fn message(&self) -> Vec<(u64, Wire)> {
        let Self::Bytes(bytes) = self else { panic!("{self:?} is not a message") };
        message(bytes)
    }
}

fn message(mut bytes: &[u8]) -> Vec<(u64, Wire)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let length = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
        let (this, rest) = bytes.split_at(length);
        *bytes = rest;
        this.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = match key & 7 {
            0 => Wire::Number(varint(&mut bytes)),
            1 => {
                let (this, rest) = bytes.split_at(8);
                bytes = rest;
                Wire::Double(f64::from_le_bytes(this.try_into().unwrap()))
            }
            2 => {
                let length = varint(&mut bytes) as usize;
                let (this, rest) = bytes.split_at(length);
                bytes = rest;
                Wire::Bytes(this.to_vec())
            }
            kind => panic!("unknown field kind: {kind}"),
        };
        fields.push((key >> 3, value));
    }
    fields
}

fn one(message: &[(u64, Wire)], field: u64) -> Option<&Wire> {
    message.iter().find(|(number, _)| *number == field).map(|(_, value)| value)
}

/// A slice of the timeline.
#[derive(Debug, Clone, PartialEq)]
pub struct Slice {
    pub track: u64,
    pub process: String,
    pub row: String,
    pub kind: String,
    pub name: String,
    pub args: Vec<(String, Wire)>,
    pub flows: Vec<u64>,
    pub times: (u64, u64),
}

/// The contents of a timeline.
#[derive(Debug, Default)]
pub struct Read {
    pub slices: Vec<Slice>,
    pub figures: Vec<(String, u64, f64)>,
}

/// Flows of the event that starts a slice.
fn flows(event: &[(u64, Wire)]) -> Vec<u64> {
    let flow = |value: &Wire| {
        let Wire::Double(flow) = value else { panic!("a flow has eight bytes") };
        flow.to_bits()
    };
    event.iter().filter(|(field, _)| *field == 47).map(|(_, value)| flow(value)).collect()
}

/// Decodes a timeline by only the format.
pub fn decode(timeline: &[u8]) -> Read {
    let (mut read, mut texts, mut tracks, mut open) =
        (Read::default(), HashMap::new(), HashMap::new(), HashMap::new());
    for (field, packet) in message(timeline) {
        assert_eq!(field, 1);
        let packet = packet.message();
        for (list, entry) in one(&packet, 12).map(Wire::message).unwrap_or_default() {
            let entry = entry.message();
            let known = texts
                .insert((list, one(&entry, 1).unwrap().number()), one(&entry, 2).unwrap().text());
            assert_eq!(known, None, "a text is written once");
        }
        if let Some(track) = one(&packet, 60).map(Wire::message) {
            let process = match one(&track, 3) {
                Some(process) => one(&process.message(), 6).unwrap().text(),
                None => {
                    let (process, _): &(String, String) =
                        &tracks[&one(&track, 5).unwrap().number()];
                    process.clone()
                }
            };
            let unit = one(&track, 8).map(|counter| one(&counter.message(), 6).unwrap().text());
            let name = one(&track, 2).map(Wire::text).unwrap_or_default()
                + &unit.map(|unit| format!(", {unit}")).unwrap_or_default();
            tracks.insert(one(&track, 1).unwrap().number(), (process, name));
        }
        let Some(event) = one(&packet, 11).map(Wire::message) else { continue };
        let (at, track) = (one(&packet, 8).unwrap().number(), one(&event, 11).unwrap().number());
        let (process, row) = tracks[&track].clone();
        let text = |list: u64, value: &Wire| texts[&(list, value.number())].clone();
        match one(&event, 9).unwrap().number() {
            1 => {
                let args = event.iter().filter(|(field, _)| *field == 4).map(|(_, arg)| {
                    let arg = arg.message();
                    let value =
                        one(&arg, 17).map(|value| Wire::Bytes(text(29, value).into_bytes()));
                    let value = value.or_else(|| one(&arg, 3).or(one(&arg, 2)).cloned()).unwrap();
                    (text(3, one(&arg, 1).unwrap()), value)
                });
                let (kind, name) =
                    (text(1, one(&event, 3).unwrap()), text(2, one(&event, 10).unwrap()));
                let slice = Slice {
                    track,
                    process,
                    row,
                    kind,
                    name,
                    args: args.collect(),
                    flows: flows(&event),
                    times: (at, at),
                };
                assert_eq!(open.insert(track, slice), None, "a slice is written with its end");
            }
            2 => {
                let slice = open.remove(&track).unwrap();
                read.slices.push(Slice { times: (slice.times.0, at), ..slice });
            }
            4 => {
                let Some(Wire::Double(value)) = one(&event, 44) else {
                    panic!("a figure is a number")
                };
                read.figures.push((row, at, *value));
            }
            other => panic!("unknown event: {other}"),
        }
    }
    assert!(open.is_empty());
    read
}
