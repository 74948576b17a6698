//! `petstore log copy`: copies a history to another engine.

use application::transfer::Tally;

use super::{progress, report};
use crate::{config::AccessArguments, store_url::StoreUrl, wire};

pub(super) async fn run(from: &StoreUrl, to: &StoreUrl, access: &AccessArguments) -> anyhow::Result<()> {
    let source = wire::open_source(from, access).await?;
    let target = wire::open_log(to).await?;
    let before = target.head().await?;
    let mut copied = Tally::default();
    progress::copy_all(&*source, &*target, &mut copied).await?;
    report::stored("copied", format!("{from} to {to}"), to, before, &copied);
    Ok(())
}
