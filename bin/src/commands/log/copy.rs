//! `petstore log copy`: copies a history to another engine.

use anyhow::bail;
use application::transfer;

use super::{progress::Progress, report};
use crate::{source::AccessArguments, store_url::StoreUrl, wire};

pub(super) async fn run(from: &StoreUrl, to: &StoreUrl, access: &AccessArguments) -> anyhow::Result<()> {
    if from.is_same_as(to) {
        bail!("--from and --to are the same log: choose a different target");
    }
    let source = wire::open_source(from, &access.access()?).await?;
    let target = wire::open_log(to).await?;
    let before = target.head().await?;
    let progress = Progress::through(&*source).await?;
    let copied = transfer::copy(&*source, &*target, |position| progress.reached(position)).await?;
    drop(progress);
    if before == copied.last {
        report::fact("copied", format!("nothing: {to} already holds all of {from}"));
    } else {
        report::fact("copied", format!("{from} to {to}"));
    }
    report::summary(&copied);
    Ok(())
}
