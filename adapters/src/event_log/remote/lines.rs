//! Splits received bytes into lines of bounded length.

use application::ports::RECORD_MAX;
use bytes::{Buf as _, Bytes};

#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Bytes that are not split yet. Add more when there is no further line.
    pub(super) received: Bytes,
    /// The start of an incomplete line.
    begun: Vec<u8>,
}

impl Lines {
    /// Takes the next complete line, without its line break. Fails before it holds more than the longest record.
    pub(super) fn take_line(&mut self) -> Result<Option<Vec<u8>>, &'static str> {
        let end = self.received.iter().position(|byte| *byte == b'\n');
        let part = self.received.split_to(end.unwrap_or(self.received.len()));
        if self.begun.len() + part.len() > RECORD_MAX {
            return Err("a line that is longer than any record");
        }
        self.begun.extend_from_slice(&part);
        if end.is_none() {
            return Ok(None);
        }
        self.received.advance(1);
        Ok(Some(std::mem::take(&mut self.begun)))
    }

    /// Whether the last line is incomplete.
    pub(super) fn has_begun(&self) -> bool {
        !self.begun.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// All lines, received in parts of this size.
    fn split(bytes: &[u8], part: usize) -> Result<Vec<Vec<u8>>, &'static str> {
        let (mut lines, mut found) = (Lines::default(), vec![]);
        for part in bytes.chunks(part) {
            lines.received = Bytes::copy_from_slice(part);
            while let Some(line) = lines.take_line()? {
                found.push(line);
            }
        }
        assert_eq!(lines.has_begun(), bytes.last().is_some_and(|last| *last != b'\n'));
        Ok(found)
    }

    proptest! {
        #[test]
        fn lines_are_the_same_however_they_are_received(
            text in vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..200),
            part in 1_usize..50,
        ) {
            let mut expected: Vec<_> = text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
            expected.pop();
            prop_assert_eq!(split(&text, part), Ok(expected));
        }
    }

    #[test]
    fn a_line_is_accepted_up_to_the_largest_record() {
        let line = vec![b'x'; RECORD_MAX];
        for part in [1_000, RECORD_MAX, RECORD_MAX + 1, RECORD_MAX + 2] {
            assert_eq!(split(&[&line[..], b"\n"].concat(), part), Ok(vec![line.clone()]));
            assert!(split(&[&line[..], b"x\n"].concat(), part).is_err());
            assert!(split(&[&line[..], b"x"].concat(), part).is_err(), "before its end");
        }
    }
}
