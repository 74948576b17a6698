//! The arguments of `petstore keys`.

use adapters::access::{RateLimit, Scope, api_keys::KeyName};
use chrono::TimeDelta;
use clap::Subcommand;

use super::one_of;

/// The maximum lifetime of a key. A key that must be valid for longer needs no expiry.
const LIFETIME_MAX: TimeDelta = TimeDelta::days(3_650);

#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Create a key and print it, alone, on the last line of standard output.
    ///
    /// The key is shown only once, because only its hash is stored. A running service accepts it within two seconds.
    Issue {
        /// Name of the key in lists and metrics: 1 to 100 characters.
        #[arg(long)]
        name: KeyName,
        /// Permissions of the key. Repeat the flag or separate scopes with commas [default: read,write]
        #[arg(long = "scope", value_name = "SCOPE", value_delimiter = ',', value_parser = one_of::<Scope>(SCOPES))]
        scopes: Vec<Scope>,
        /// How long the key is valid, for example 12h, 90d or 1w, at most ten years [default: no expiry]
        #[arg(long, value_name = "TIME", value_parser = lifetime)]
        expires_in: Option<TimeDelta>,
        /// Rate limit of the key, for example 10/s, 100/m or 1000/h [default: the limit of the service, if it has one]
        #[arg(long, value_name = "LIMIT")]
        rate_limit: Option<RateLimit>,
    },
    /// List all keys with their ids, names, scopes, times and states, but never the secrets.
    List {
        /// Print each key as one line of JSON.
        #[arg(long)]
        json: bool,
    },
    /// Replace a key: create a key for the same owner and print it, alone, on the last line of standard output.
    ///
    /// The new key has the same owner, name, scopes and rate limit. Idempotency keys stay valid: a request that was
    /// sent with the old key can be repeated with the new one. Both keys are accepted until the overlap ends.
    Rotate {
        /// The id or the name of the key, as shown by `petstore keys list`, or the key itself.
        key: String,
        /// How long the old key stays valid, for example 0s, 12h or 1w.
        #[arg(long, value_name = "TIME", default_value = "1d", value_parser = overlap)]
        overlap: TimeDelta,
        /// How long the new key is valid [default: as long as the old key was when it was issued]
        #[arg(long, value_name = "TIME", value_parser = lifetime)]
        expires_in: Option<TimeDelta>,
    },
    /// Revoke a key permanently. A running service rejects it within two seconds.
    Revoke {
        /// The id or the name of the key, as shown by `petstore keys list`, or the key itself.
        key: String,
    },
}

fn lifetime(text: &str) -> Result<TimeDelta, &'static str> {
    let rule = "expected a duration such as 90d, 12h or 1h30m, from 1s to 3650d";
    span(text).filter(|span| *span >= TimeDelta::seconds(1)).ok_or(rule)
}

fn overlap(text: &str) -> Result<TimeDelta, &'static str> {
    span(text).ok_or("expected a duration such as 0s, 12h or 1d, up to 3650d")
}

fn span(text: &str) -> Option<TimeDelta> {
    let span = TimeDelta::from_std(humantime::parse_duration(text).ok()?).ok()?;
    (span <= LIFETIME_MAX).then_some(span)
}

const SCOPES: [(&str, &str); 4] = [
    ("read", "List and get pets"),
    ("write", "Add pets"),
    ("log", "Read the whole log on the admin listener"),
    ("metrics", "Read the metrics on an admin listener that other machines can reach"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_has_one_second_to_ten_years_and_an_overlap_may_be_zero() {
        for (text, seconds) in [
            ("1s", 1),
            ("15m", 900),
            ("12h", 43_200),
            ("90d", 7_776_000),
            ("1w", 604_800),
            ("1d 12h", 129_600),
            ("3650d", 315_360_000),
        ] {
            assert_eq!(lifetime(text), Ok(TimeDelta::seconds(seconds)), "{text:?}");
            assert_eq!(overlap(text), lifetime(text));
        }
        let wrong = "d 90 -1d +1d 1dd 3651d 522w 9223372036854775807w 99999999999999999999s ٣d";
        for text in wrong.split(' ').chain([""]) {
            lifetime(text).unwrap_err();
            overlap(text).unwrap_err();
        }
        for text in ["0s", "999ms"] {
            lifetime(text).unwrap_err();
            overlap(text).unwrap();
        }
    }
}
