//! The body that most clients send: an object with the fields of a pet, each once, nothing escaped, nothing else. It is
//! read by hand, in a quarter of the instructions that `new_pet` takes; `new_pet` reads every other body, and says what is
//! wrong with it. A property test compares the two.

use domain::{CategoryId, NewPet, PetName, PetStatus};

/// The pet in a body of this kind, if it is valid.
pub(super) fn parse(body: &[u8]) -> Option<NewPet> {
    let mut rest = Rest(body);
    let (mut name, mut category_id, mut status) = (None, None, None);
    rest.token(b'{')?;
    loop {
        let field = rest.text()?;
        rest.token(b':')?;
        let given_before = match field {
            "name" => name.replace(PetName::new(rest.text()?).ok()?).is_some(),
            "categoryId" => category_id.replace(CategoryId(rest.number()?)).is_some(),
            "status" => status.replace(rest.text()?.parse::<PetStatus>().ok()?).is_some(),
            _ => return None,
        };
        if given_before {
            return None;
        }
        if rest.token(b',').is_none() {
            break;
        }
    }
    rest.token(b'}')?;
    rest.skip_blanks();
    rest.0.is_empty().then_some(NewPet { name: name?, category_id: category_id?, status })
}

/// What is not read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    /// Reads this character, and blanks before it.
    fn token(&mut self, character: u8) -> Option<()> {
        self.skip_blanks();
        let rest = self.0.strip_prefix(&[character])?;
        self.0 = rest;
        Some(())
    }

    /// Reads a text without escapes. Control characters are not allowed in JSON either.
    fn text(&mut self) -> Option<&'a str> {
        self.token(b'"')?;
        let end = self.0.iter().position(|byte| matches!(byte, b'"' | b'\\' | ..b' '))?;
        let (text, rest) = self.0.split_at(end);
        self.0 = rest.strip_prefix(b"\"")?;
        str::from_utf8(text).ok()
    }

    /// Reads an integer of so few digits that it fits. What follows is a comma or a brace, or the object ends wrongly.
    fn number(&mut self) -> Option<i64> {
        const DIGITS_MAX: usize = 18;
        self.skip_blanks();
        let end = self.0.iter().position(|byte| !byte.is_ascii_digit())?;
        let (digits, rest) = self.0.split_at(end);
        if !(1..=DIGITS_MAX).contains(&digits.len()) || digits.len() > 1 && digits[0] == b'0' {
            return None;
        }
        self.0 = rest;
        Some(digits.iter().fold(0, |number, digit| 10 * number + i64::from(digit - b'0')))
    }

    fn skip_blanks(&mut self) {
        while let [b' ' | b'\t' | b'\n' | b'\r', rest @ ..] = self.0 {
            self.0 = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::http::{new_pet, prefer::Handling};

    #[test]
    fn what_clients_usually_send_is_read_here() {
        for body in [
            r#"{"name":"Rex","categoryId":7,"status":"available"}"#,
            r#"{"name": "Rex", "categoryId": 0}"#,
            " {\n  \"status\": \"sold\",\n  \"categoryId\": 999999999999999999,\n  \"name\": \"Zoë\"\n}\n",
        ] {
            assert!(parse(body.as_bytes()).is_some(), "{body}");
        }
    }

    #[test]
    fn every_other_spelling_of_a_number_is_left_to_the_other_reader() {
        for number in ["", "05", "00", "-1", "1.0", "1e2", "1000000000000000000"] {
            let body = format!(r#"{{"name":"Rex","categoryId":{number}}}"#);
            assert_eq!(parse(body.as_bytes()), None, "{number}");
        }
    }

    /// Parts of bodies, so that many of them make sense.
    fn body() -> impl Strategy<Value = String> {
        let field = prop::sample::select(vec!["name", "categoryId", "status", "nam\\u0065", "other"]);
        let value = prop_oneof![
            prop::sample::select(vec!["\"sold\"", "\"available\"", "null", "true", "[]", "{}", "1.0", "1e2"])
                .prop_map(str::to_owned),
            "\"\\PC{0,4}\"",
            "\"[a-z \\\\\\\\\"\\u{1}]{0,4}\"",
            "-?[0-9]{1,20}",
        ];
        let pair = (field, value, "[ \\n]{0,2}")
            .prop_map(|(field, value, blank)| format!("{blank}\"{field}\"{blank}:{blank}{value}{blank}"));
        let ends = prop::sample::select(vec![
            ("{", "}"),
            ("{", "}"),
            (" {", "}\n"),
            ("", ""),
            ("{", ",}"),
            ("[", "]"),
        ]);
        (prop::collection::vec(pair, 0..5), ends, "[,x]?")
            .prop_map(|(pairs, (open, close), more)| format!("{open}{}{close}{more}", pairs.join(",")))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn what_is_read_here_is_read_the_same_way_there(body in body()) {
            if let Some(pet) = parse(body.as_bytes()) {
                for handling in [Handling::Lenient, Handling::Strict] {
                    prop_assert_eq!(new_pet::parse(body.as_bytes(), handling), Ok(pet.clone()), "{}", body);
                }
            }
        }

        #[test]
        fn the_usual_body_of_every_pet_without_escapes_is_read_here(
            name in "[^\\pC\"\\\\]{1,30}", category in 0..10_i64.pow(18),
            status in prop::option::of(prop::sample::select(PetStatus::ALL.to_vec())),
        ) {
            prop_assume!(!name.trim().is_empty());
            let status = status.map(|status| format!(",\"status\":\"{}\"", status.as_str())).unwrap_or_default();
            let body = format!("{{\"name\":\"{name}\",\"categoryId\":{category}{status}}}");
            prop_assert_eq!(parse(body.as_bytes()), new_pet::parse(body.as_bytes(), Handling::Strict).ok(), "{}", body);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = parse(&bytes);
        }
    }
}
