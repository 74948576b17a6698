//! `petstore log stat`: prints the size and age of a log, and the durability that its engine promises.

use std::collections::BTreeMap;

use application::transfer::Tally;
use serde_json::json;

use super::{progress, report};
use crate::{config::SourceArgument, output, wire};

pub(super) async fn run(source: &SourceArgument, json: bool) -> anyhow::Result<()> {
    let log = wire::open_source(&source.store, &source.access).await?;
    let mut tally = Tally::default();
    progress::check_all(&*log, &mut tally, |_| ()).await?;
    let durability = log.durability();
    if json {
        let mut object = report::tally_as_json(&source.store, &tally);
        object["engine"] = durability.engine.into();
        object["durability"] = json!({
            "level": durability.level.name(),
            "promise": durability.promise,
            "settings": durability.settings.into_iter().collect::<BTreeMap<_, _>>(),
        });
        output::print_line(object);
        return Ok(());
    }
    report::field("store", &source.store);
    report::field("engine", durability.engine);
    report::tally(&tally);
    report::field("durability", durability.promise);
    for (setting, value) in &durability.settings {
        report::field("", format!("{setting} = {value}"));
    }
    Ok(())
}
