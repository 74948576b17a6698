//! `petstore log stat`: prints the size and age of a log, and the durability that its engine promises.

use application::transfer::Tally;

use super::{progress, report};
use crate::{config::SourceArgument, wire};

pub(super) async fn run(source: &SourceArgument) -> anyhow::Result<()> {
    let log = wire::open_source(&source.store, &source.access).await?;
    let mut tally = Tally::default();
    progress::check_all(&*log, &mut tally, |_| ()).await?;
    let durability = log.durability();
    report::field("store", &source.store);
    report::field("engine", durability.engine);
    report::tally(&tally);
    report::field("durability", durability.promise);
    for (setting, value) in &durability.settings {
        report::field("", format!("{setting} = {value}"));
    }
    Ok(())
}
