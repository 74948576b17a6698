//! `--until`: ends a copy, an export or an import at a position or a time.

use application::transfer::{Cut, End};
use chrono::{DateTime, SecondsFormat, Utc};

use crate::{config::AccessArguments, engines::Source, output, store_url::StoreUrl, wire};

/// Opens a log read-only, and finds the end in it. A log is read twice to end at a time.
pub(super) async fn open_source(
    url: &StoreUrl,
    access: &AccessArguments,
    until: Option<End>,
) -> anyhow::Result<(Source, Cut)> {
    warn_if_in_the_future(until);
    let log = wire::open_source(url, access).await?;
    let cut = Cut::of(&*log, until).await?;
    Ok((log, cut))
}

/// Prints a warning if the end is a time that has not come yet: it ends nothing.
pub(super) fn warn_if_in_the_future(until: Option<End>) {
    if let Some(End::Time(time)) = until
        && time > Utc::now()
    {
        output::print_error(format_args!(
            "petstore: warning: --until {} is in the future, so every commit is included",
            exact(time)
        ));
    }
}

/// Describes where a time ends the history, in one sentence; `None` if the end is not a time.
pub(super) fn describe(cut: &Cut) -> Option<String> {
    let Some(End::Time(time)) = cut.end else { return None };
    let (last, last_in_time) = (cut.last, cut.last_in_time?);
    let time = exact(time);
    let Some((later, later_time)) = cut.first_after else {
        return Some(format!("no commit is later than {time}: the history is complete"));
    };
    let later_time = exact(later_time);
    let clocks = if last_in_time > last {
        format!(
            "clocks differ: the last position with an earlier time is {last_in_time}, and --until {last_in_time} includes it"
        )
    } else {
        format!("the last position with an earlier time is {last}")
    };
    Some(format!("stopped before position {later}, whose time is {later_time}; {clocks}"))
}

fn exact(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::AutoSi, true)
}
