//! `petstore log stat`: how large the log is, how old, and what its engine promises.

use super::{tell, walk};
use crate::{store_url::StoreUrl, wire};

pub(super) async fn run(url: &StoreUrl) -> anyhow::Result<()> {
    let log = wire::open_existing_log(url).await?;
    let summary = walk::to_the_end(&*log).await?;
    let durability = log.durability();
    tell::line("store", url);
    tell::line("engine", durability.engine);
    tell::summary(&summary);
    tell::line("durability", durability.promise);
    for (setting, value) in &durability.facts {
        tell::line("", format!("{setting} = {value}"));
    }
    Ok(())
}
