//! Integers from their decimal text. No value is converted to a float, so nothing is rounded; exponents are
//! not expanded digit by digit, so `1e999999999` costs no more than `1`.

use std::{borrow::Cow, num::IntErrorKind};

/// The integer that a JSON number stands for, if it is exactly an int64: `1.0`, `1e3` and `-0` are integers too.
pub(crate) fn int64(json: &str) -> Option<i64> {
    let (mantissa, exponent) = json.split_once(['e', 'E']).unwrap_or((json, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let unsigned = whole.strip_prefix('-').unwrap_or(whole);
    if unsigned.is_empty() || !unsigned.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits = if fraction.is_empty() { Cow::from(whole) } else { [whole, fraction].concat().into() };
    let significant = digits.trim_end_matches('0');
    let exponent = match exponent.parse::<isize>() {
        Ok(exponent) => Some(exponent),
        // Too large for an `isize`: zero is still zero, and no other number is an int64.
        Err(error) if matches!(error.kind(), IntErrorKind::PosOverflow | IntErrorKind::NegOverflow) => None,
        Err(_) => return None,
    };
    if matches!(significant, "" | "-") {
        return Some(0);
    }
    let zeros = exponent?.checked_add_unsigned(digits.len() - significant.len())?;
    let zeros = u32::try_from(zeros.checked_sub_unsigned(fraction.len())?).ok()?;
    significant.parse::<i64>().ok()?.checked_mul(10_i64.checked_pow(zeros)?)
}

/// A number in a path, a query or a header: plain decimal digits, without sign, blanks or leading zeros.
pub(crate) fn plain(text: &str) -> Option<u64> {
    let number = text.parse().ok()?;
    (itoa::Buffer::new().format(number) == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn whole_numbers_are_integers_however_they_are_written() {
        let cases = [
            ("0", 0),
            ("-0", 0),
            ("-0.0e5", 0),
            ("0e999999999999999999999", 0),
            ("0e-999999999999999999999", 0),
            ("1.0", 1),
            ("1e3", 1_000),
            ("1E+3", 1_000),
            ("100e-2", 1),
            ("1.50e1", 15),
            ("0.0012e4", 12),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
            ("9.223372036854775807e18", i64::MAX),
            ("-92233720368547758080e-1", i64::MIN),
            ("9007199254740993", 9_007_199_254_740_993),
        ];
        for (text, number) in cases {
            assert_eq!(int64(text), Some(number), "{text}");
        }
    }

    #[test]
    fn anything_but_an_int64_is_rejected() {
        let too_large = "9223372036854775808 -9223372036854775809 1e19 1e999999999 -1e999999999999999999999 99999999999999999999";
        let fractions = "0.5 1.5 1e-1 15e-1 1e-999999999 9223372036854775807.5";
        let malformed = "- .5 e5 1e 1e+ 0e 0e- 0ex 1.e +1 1_000 0x10 NaN --1 1e1.5 ١";
        for text in [too_large, fractions, malformed].into_iter().flat_map(|list| list.split(' ')).chain([""])
        {
            assert_eq!(int64(text), None, "{text}");
        }
    }

    #[test]
    fn a_number_may_be_as_long_as_a_request_body() {
        let zeros = "0".repeat(60_000);
        assert_eq!(int64(&format!("0.{zeros}7e60001")), Some(7));
        assert_eq!(int64(&format!("7{zeros}e-60000")), Some(7));
        assert_eq!(int64(&format!("7{zeros}")), None);
        assert_eq!(int64(&format!("1e{}", "9".repeat(60_000))), None);
    }

    #[test]
    fn only_plain_digits_are_a_plain_number() {
        assert_eq!(plain("0"), Some(0));
        assert_eq!(plain("18446744073709551615"), Some(u64::MAX));
        for text in ["", "+5", " 5", "5 ", "05", "00", "-1", "1e1", "1.0", "0x1", "٥", "18446744073709551616"]
        {
            assert_eq!(plain(text), None, "{text:?}");
        }
    }

    /// The same number with a shifted decimal point, the exponent that undoes the shift, and redundant zeros.
    fn spelled(number: i64, point: usize, padding: usize) -> String {
        let sign = if number < 0 { "-" } else { "" };
        let digits = format!("{}{}", number.unsigned_abs(), "0".repeat(padding));
        let point = point.clamp(1, digits.len());
        let (whole, fraction) = digits.split_at(point);
        let dot = if fraction.is_empty() { "" } else { "." };
        let exponent = i64::try_from(fraction.len()).unwrap() - i64::try_from(padding).unwrap();
        format!("{sign}{whole}{dot}{fraction}e{exponent}")
    }

    proptest! {
        #[test]
        fn every_int64_is_read_back_from_every_spelling(number: i64, point in 1_usize..40, padding in 0_usize..20) {
            prop_assert_eq!(int64(&number.to_string()), Some(number));
            prop_assert_eq!(int64(&spelled(number, point, padding)), Some(number));
        }

        /// The oracle shifts the digits as text, and checks the range with `i128`.
        #[test]
        fn any_number_is_an_integer_exactly_when_its_written_out_form_is(
            negative: bool, whole in "0|[1-9][0-9]{0,18}", fraction in "[0-9]{0,6}", exponent in -25_i32..15,
        ) {
            let sign = if negative { "-" } else { "" };
            let dot = if fraction.is_empty() { "" } else { "." };
            let text = format!("{sign}{whole}{dot}{fraction}e{exponent}");
            let mut digits = format!("{whole}{fraction}");
            let shift = exponent - i32::try_from(fraction.len()).unwrap();
            let mut exact = true;
            for _ in shift..0 {
                exact &= digits.pop().is_none_or(|digit| digit == '0');
            }
            digits.extend((0..shift).map(|_| '0'));
            let written_out: i128 = format!("{sign}0{digits}").parse().unwrap();
            let expected = if exact { i64::try_from(written_out).ok() } else { None };
            prop_assert_eq!(int64(&text), expected, "{}", text);
        }

        #[test]
        fn no_text_makes_it_panic(text in "[-+.eE0-9 ]{0,40}|\\PC{0,20}") {
            let _ = int64(&text);
            let _ = plain(&text);
        }
    }
}
