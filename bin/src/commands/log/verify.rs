//! `petstore log verify`: reads and checks a whole log. If it is damaged, reports where, and what can be salvaged.

use application::{ports::Fault, transfer::Broken};

use super::{progress, report, salvage};
use crate::{store_url::StoreUrl, wire};

pub(super) async fn run(url: &StoreUrl) -> anyhow::Result<()> {
    let (error, first_bad) = match wire::open_existing_log(url).await {
        Ok(log) => match progress::check_all(&*log).await {
            Ok(summary) => {
                report::fact("sound", url);
                report::summary(&summary);
                return Ok(());
            }
            Err(Broken { error, sound }) => (error, Some(sound.last.next())),
        },
        Err(error) => (error, None),
    };
    if error.fault == Fault::Damaged {
        report::fact("damaged", url);
        // The log is damaged, whether or not this works.
        if let Ok(remains) = wire::find_remains(url).await {
            salvage::survey(&remains, first_bad).await;
        }
    }
    Err(error.into())
}
