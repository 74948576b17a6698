//! Header values from numbers and plain words, put together on the stack, and kept while they stay the same.
//!
//! `format!` and one growing string for each of them made up a third of the allocations of a request.

use std::{cell::RefCell, thread::LocalKey};

use axum::http::HeaderValue;

/// The longest value: the link to the next page.
const BYTES_MAX: usize = 128;

/// A header value that is being written. It holds nothing but ASCII.
#[derive(Clone)]
pub(super) struct ValueWriter {
    bytes: [u8; BYTES_MAX],
    length: usize,
}

impl ValueWriter {
    pub(super) fn new() -> Self {
        Self { bytes: [0; BYTES_MAX], length: 0 }
    }

    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.write(text.as_bytes())
    }

    pub(super) fn decimal(&mut self, number: impl itoa::Integer) -> &mut Self {
        self.write(itoa::Buffer::new().format(number).as_bytes())
    }

    /// Two digits for each byte.
    pub(super) fn hex(&mut self, bytes: &[u8]) -> &mut Self {
        let room = &mut self.bytes[self.length..][..2 * bytes.len()];
        for (byte, digits) in bytes.iter().zip(room.as_chunks_mut().0) {
            *digits = [digit(byte >> 4), digit(byte & 0xf)];
        }
        self.length += 2 * bytes.len();
        self
    }

    /// As few digits as the number has.
    pub(super) fn hex_number(&mut self, number: u64) -> &mut Self {
        let digits = (u64::BITS - number.leading_zeros()).div_ceil(4).max(1);
        for place in (0..digits).rev() {
            let value = number >> (4 * place) & 0xf;
            self.write(&[digit(u8::try_from(value).expect("four bits fit into eight"))]);
        }
        self
    }

    pub(super) fn value(&self) -> HeaderValue {
        HeaderValue::from_bytes(&self.bytes[..self.length]).expect("plain ASCII is fit for a header")
    }

    fn write(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes[self.length..][..bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
        self
    }
}

/// The value that was made last on this thread, and what it was made of.
pub(super) type Last<K> = RefCell<Option<(K, HeaderValue)>>;

/// The value for `key`: the last one if it was made of the same, otherwise a new one. Between two commits, all reads
/// share the values that name the commit.
pub(super) fn remembered<K: Copy + PartialEq>(
    last: &'static LocalKey<Last<K>>,
    key: K,
    make: impl FnOnce(K) -> HeaderValue,
) -> HeaderValue {
    last.with_borrow_mut(|last| match last {
        Some((made_of, value)) if *made_of == key => value.clone(),
        Some(_) | None => last.insert((key, make(key))).1.clone(),
    })
}

fn digit(value: u8) -> u8 {
    b"0123456789abcdef"[usize::from(value)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn values_are_what_format_makes_of_them(word in "[ -~]{0,20}", number: i64, hex: u64, bytes: [u8; 16]) {
            let written = ValueWriter::new().text(&word).decimal(number).hex_number(hex).hex(&bytes).value();
            prop_assert_eq!(written, format!("{word}{number}{hex:x}{:032x}", u128::from_be_bytes(bytes)));
        }
    }

    #[test]
    fn a_number_has_at_least_one_digit() {
        assert_eq!(ValueWriter::new().decimal(0).hex_number(0).value(), "00");
    }

    #[test]
    fn a_value_is_made_again_only_when_what_it_is_made_of_has_changed() {
        thread_local! {
            static LAST: Last<u64> = const { RefCell::new(None) };
        }
        let mut made = 0;
        for (number, made_so_far) in [(1, 1), (1, 1), (2, 2), (1, 3)] {
            let value = remembered(&LAST, number, |number| {
                made += 1;
                ValueWriter::new().decimal(number).text("x").value()
            });
            assert_eq!((value.to_str().unwrap(), made), (&*format!("{number}x"), made_so_far));
        }
    }
}
