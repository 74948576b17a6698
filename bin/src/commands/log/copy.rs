//! `petstore log copy`: copies a history to another engine.

use anyhow::bail;
use application::transfer::{self, CopyStep, Until};

use super::{progress::ProgressDisplay, report};
use crate::{config::AccessArguments, store_url::StoreUrl, wire};

pub(super) async fn run(from: &StoreUrl, to: &StoreUrl, access: &AccessArguments) -> anyhow::Result<()> {
    if from.is_same_as(to) {
        bail!("--from and --to are the same log: choose a different target");
    }
    let source = wire::open_source(from, &access.access()?).await?;
    let target = wire::open_log(to).await?;
    let before = target.head().await?;
    let progress = ProgressDisplay::through(&*source).await?;
    let copied = transfer::copy(&*source, &*target, Until::Head, |step| {
        if let CopyStep::Stored(commit) = step {
            progress.reached(commit.position);
        }
    });
    let copied = copied.await.map_err(|broken| super::with_advice(broken.error))?;
    drop(progress);
    report::stored("copied", format!("{from} to {to}"), to, before, &copied);
    Ok(())
}
