//! Writes the usual commit by hand, which takes a seventh of the instructions that serde takes. Commits with a text that
//! JSON escapes are left to serde; a property test compares the bytes.

use chrono::{DateTime, Datelike as _, Timelike as _, Utc};
use domain::{Pet, PetEvent};
use uuid::fmt::Hyphenated;

use super::PET_ADDED;
use crate::{
    commit::{Commit, Entry, Format},
    digest::push_hex,
};

/// Writes everything before the checksum. `None` if the commit has to be left to serde; `out` then holds a part of it.
pub(super) fn write(out: &mut Vec<u8>, commit: &Commit) -> Option<()> {
    out.extend_from_slice(match commit.format {
        Format::V1 => br#"{"v":1,"position":"#,
        Format::V2 { .. } => br#"{"v":2,"position":"#,
    });
    push_number(out, commit.position.0);
    out.extend_from_slice(br#","id":""#);
    let mut id = [0; Hyphenated::LENGTH];
    out.extend_from_slice(commit.id.0.hyphenated().encode_lower(&mut id).as_bytes());
    match commit.format {
        Format::V1 => {}
        Format::V2 { previous, node } => {
            out.extend_from_slice(br#"","previous":""#);
            push_hex(out, &previous.0);
            out.extend_from_slice(br#"","node":""#);
            push_hex(out, &node.0.to_be_bytes());
        }
    }
    out.extend_from_slice(br#"","time":""#);
    push_time(out, commit.time)?;
    out.extend_from_slice(br#"","events":["#);
    for (index, entry) in commit.entries.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        push_entry(out, entry)?;
    }
    out.push(b']');
    Some(())
}

fn push_entry(out: &mut Vec<u8>, entry: &Entry) -> Option<()> {
    let PetEvent::Added(Pet { id, details }) = &entry.event;
    let (kind, version) = PET_ADDED;
    out.extend_from_slice(br#"{"type":""#);
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(br#"","v":"#);
    push_number(out, version);
    out.extend_from_slice(br#","pet":{"id":"#);
    push_number(out, id.get());
    out.extend_from_slice(br#","name":""#);
    push_text(out, details.name.as_str())?;
    out.extend_from_slice(br#"","categoryId":"#);
    push_number(out, details.category_id.0);
    if let Some(status) = details.status {
        out.extend_from_slice(br#","status":""#);
        out.extend_from_slice(status.as_str().as_bytes());
        out.push(b'"');
    }
    out.extend_from_slice(br#"},"by":""#);
    push_text(out, &entry.by.0)?;
    if let Some(key) = &entry.request_key {
        out.extend_from_slice(br#"","requestKey":""#);
        push_text(out, key.as_str())?;
    }
    out.extend_from_slice(br#""}"#);
    Some(())
}

/// A text that JSON shows as it is.
fn push_text(out: &mut Vec<u8>, text: &str) -> Option<()> {
    let escaped = |byte| matches!(byte, b'"' | b'\\' | ..b' ');
    if text.bytes().any(escaped) {
        return None;
    }
    out.extend_from_slice(text.as_bytes());
    Some(())
}

fn push_number(out: &mut Vec<u8>, number: impl serde::Serialize) {
    serde_json::to_writer(out, &number).expect("memory takes every number");
}

/// To the microsecond, as RFC 3339 has it. Neither years of five digits nor leap seconds.
fn push_time(out: &mut Vec<u8>, time: DateTime<Utc>) -> Option<()> {
    let year = u32::try_from(time.year()).ok().filter(|year| *year < 10_000)?;
    let micros = Some(time.nanosecond() / 1_000).filter(|micros| *micros < 1_000_000)?;
    push_digits(out, year, 4);
    for (separator, number) in [
        (b'-', time.month()),
        (b'-', time.day()),
        (b'T', time.hour()),
        (b':', time.minute()),
        (b':', time.second()),
    ] {
        out.push(separator);
        push_digits(out, number, 2);
    }
    out.push(b'.');
    push_digits(out, micros, 6);
    out.push(b'Z');
    Some(())
}

fn push_digits(out: &mut Vec<u8>, number: u32, digits: u32) {
    for place in (0..digits).rev() {
        let digit = number / 10_u32.pow(place) % 10;
        out.push(b'0' + u8::try_from(digit).expect("a digit is below ten"));
    }
}
