//! Metrics as text, in one of the two formats that Prometheus reads.

use std::fmt::{Display, Write as _};

use application::Histogram;
use axum::http::{
    HeaderMap, HeaderValue,
    header::{ACCEPT, HeaderName},
};

/// How the text is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    OpenMetrics,
    Prometheus,
}

/// What a family of samples is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
    /// Facts as labels of a sample that is always 1.
    Info,
}

impl Format {
    /// `OpenMetrics` for clients that ask for it, the older format for all others.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let wanted = |media: &str| {
            let mut parts = media.split(';').map(str::trim);
            let named =
                parts.next().is_some_and(|name| name.eq_ignore_ascii_case("application/openmetrics-text"));
            let refused = parts.any(|part| {
                let weight = part.strip_prefix("q=").and_then(|weight| weight.parse::<f32>().ok());
                weight.is_some_and(|weight| weight <= 0.0)
            });
            named && !refused
        };
        let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let open = accepted.flat_map(|value| value.split(',')).any(wanted);
        if open { Self::OpenMetrics } else { Self::Prometheus }
    }

    pub(super) fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        })
    }

    pub(super) const VARY: (HeaderName, HeaderValue) =
        (axum::http::header::VARY, HeaderValue::from_static("Accept"));
}

/// The text while it is written. The name of a family has no suffix; its samples get theirs here.
pub(super) struct Text {
    format: Format,
    text: String,
}

/// The family that samples are written to.
pub(super) struct Family<'a> {
    text: &'a mut Text,
    name: &'a str,
    kind: Kind,
}

impl Text {
    pub(super) fn new(format: Format) -> Self {
        Self { format, text: String::with_capacity(32 * 1024) }
    }

    pub(super) fn family<'a>(&'a mut self, name: &'a str, kind: Kind, help: &str) -> Family<'a> {
        let word = match (self.format, kind) {
            (Format::OpenMetrics | Format::Prometheus, Kind::Counter) => "counter",
            (Format::OpenMetrics | Format::Prometheus, Kind::Gauge) | (Format::Prometheus, Kind::Info) => {
                "gauge"
            }
            (Format::OpenMetrics | Format::Prometheus, Kind::Histogram) => "histogram",
            (Format::OpenMetrics, Kind::Info) => "info",
        };
        let family = Family { text: self, name, kind };
        // The older format names samples, the newer one families.
        let suffix = match family.text.format {
            Format::OpenMetrics => "",
            Format::Prometheus => family.suffix(),
        };
        family.text.line(format_args!("# HELP {name}{suffix} {help}"));
        family.text.line(format_args!("# TYPE {name}{suffix} {word}"));
        family
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, Kind::Gauge, help).sample(&[], value);
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, Kind::Counter, help).sample(&[], value);
    }

    pub(super) fn histogram(
        &mut self,
        name: &str,
        help: &str,
        histogram: &Histogram,
        unit: impl Fn(u64) -> String,
    ) {
        let mut family = self.family(name, Kind::Histogram, help);
        family.buckets(&[], histogram.cumulated().into_iter(), histogram.sum(), unit);
    }

    pub(super) fn finish(mut self) -> String {
        match self.format {
            Format::OpenMetrics => self.line("# EOF"),
            Format::Prometheus => {}
        }
        self.text
    }

    fn line(&mut self, line: impl Display) {
        writeln!(self.text, "{line}").expect("a string takes everything");
    }
}

impl Family<'_> {
    fn suffix(&self) -> &'static str {
        match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        }
    }

    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.write(self.suffix(), labels, value);
    }

    /// Each bound with the number of values up to it; without a bound, the number of all values.
    pub(super) fn buckets(
        &mut self,
        labels: &[(&str, &str)],
        buckets: impl Iterator<Item = (Option<u64>, u64)>,
        sum: u64,
        unit: impl Fn(u64) -> String,
    ) {
        let mut total = 0;
        for (bound, count) in buckets {
            let bound = bound.map_or_else(|| "+Inf".to_owned(), &unit);
            let labels: Vec<_> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
            self.write("_bucket", &labels, count);
            total = count;
        }
        self.write("_count", labels, total);
        self.write("_sum", labels, unit(sum));
    }

    fn write(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let escaped = |value: &str| value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
        let labels = labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value)));
        let labels: Vec<_> = labels.collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        self.text.line(format_args!("{}{suffix}{labels} {value}", self.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newer_format_is_for_clients_that_ask_for_it() {
        let format = |accept: &'static str| {
            Format::of(&HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]))
        };
        for accept in [
            "application/openmetrics-text",
            "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;q=0.5,*/*;q=0.1",
            "text/plain, Application/OpenMetrics-Text; q=0.2",
        ] {
            assert_eq!(format(accept), Format::OpenMetrics, "{accept}");
        }
        for accept in ["", "*/*", "text/plain", "application/openmetrics-text;q=0", "text/html"] {
            assert_eq!(format(accept), Format::Prometheus, "{accept}");
        }
    }

    #[test]
    fn names_get_the_suffix_that_the_format_wants() {
        let written = |format| {
            let mut text = Text::new(format);
            text.counter("a", "Things.", 3);
            text.family("b", Kind::Info, "Facts.").sample(&[("c", "d\"\\\n")], 1);
            text.finish()
        };
        assert_eq!(
            written(Format::OpenMetrics),
            "# HELP a Things.\n# TYPE a counter\na_total 3\n# HELP b Facts.\n# TYPE b info\n\
             b_info{c=\"d\\\"\\\\\\n\"} 1\n# EOF\n"
        );
        assert_eq!(
            written(Format::Prometheus),
            "# HELP a_total Things.\n# TYPE a_total counter\na_total 3\n# HELP b_info Facts.\n\
             # TYPE b_info gauge\nb_info{c=\"d\\\"\\\\\\n\"} 1\n"
        );
    }
}
