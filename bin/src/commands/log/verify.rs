//! `petstore log verify`: reads everything and checks it. If it is damaged, tells where, and what can be
//! saved.

use application::{ports::Fault, transfer::Broken};

use super::{salvage, tell, walk};
use crate::{store_url::StoreUrl, wire};

pub(super) async fn run(url: &StoreUrl) -> anyhow::Result<()> {
    let (error, first_bad) = match wire::open_existing_log(url).await {
        Ok(log) => match walk::to_the_end(&*log).await {
            Ok(summary) => {
                tell::line("sound", url);
                tell::summary(&summary);
                return Ok(());
            }
            Err(Broken { error, sound }) => (error, Some(sound.last.next())),
        },
        Err(error) => (error, None),
    };
    if error.fault == Fault::Damaged {
        tell::line("damaged", url);
        // Whether or not this works, the verdict stands.
        if let Ok(remains) = wire::find_remains(url).await {
            salvage::survey(&remains, first_bad).await;
        }
    }
    Err(error.into())
}
