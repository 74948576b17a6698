//! `petstore log stat`: prints the size and age of a log, and the durability that its engine promises.

use super::{progress, report};
use crate::{store_url::StoreUrl, wire};

pub(super) async fn run(url: &StoreUrl) -> anyhow::Result<()> {
    let log = wire::open_existing_log(url).await?;
    let summary = progress::check_all(&*log).await?;
    let durability = log.durability();
    report::fact("store", url);
    report::fact("engine", durability.engine);
    report::summary(&summary);
    report::fact("durability", durability.promise);
    for (setting, value) in &durability.facts {
        report::fact("", format!("{setting} = {value}"));
    }
    Ok(())
}
