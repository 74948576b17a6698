//! `petstore log stat`: prints the size and age of a log, and the durability that its engine promises.

use std::collections::BTreeMap;

use application::transfer::Tally;
use clap::builder::styling::AnsiColor;
use serde_json::{Value, json};

use super::{progress, report};
use crate::{
    commands::health,
    config::{Probe, SourceArgument},
    output,
    store_url::StoreUrl,
    wire,
};

pub(super) async fn run(source: &SourceArgument, json: bool) -> anyhow::Result<()> {
    let log = wire::open_source(&source.store, &source.access).await?;
    let mut tally = Tally::default();
    progress::check_all(&*log, &mut tally, |_| ()).await?;
    let about = if let StoreUrl::Service(url) = &source.store {
        // Only the service knows its engine.
        let asked = health::ask(url, Probe::Ready, source.access.ca.as_deref()).await;
        asked.ok().and_then(|(_, report)| serde_json::from_str(&report).ok()).unwrap_or_default()
    } else {
        let durability = log.durability();
        let settings: BTreeMap<_, _> = durability.settings.into_iter().collect();
        let (level, promise) = (durability.level.name(), durability.promise);
        let promised = json!({ "level": level, "promise": promise, "settings": settings });
        json!({ "engine": durability.engine, "durability": promised })
    };
    let durability = &about["durability"];
    if json {
        let mut object = report::tally_as_json(&source.store, &tally);
        object["engine"] = about["engine"].clone();
        object["durability"] = durability.clone();
        output::print_line(object);
        return Ok(());
    }
    let text = |value: &Value| value.as_str().unwrap_or("unknown").replace(char::is_control, " ");
    let colour = match durability["level"].as_str() {
        Some("synced" | "replicated") => AnsiColor::Green,
        Some("buffered") => AnsiColor::Yellow,
        Some(_) | None => AnsiColor::Red,
    };
    report::field("store", &source.store);
    report::field("engine", text(&about["engine"]));
    report::tally(&tally);
    report::field("durability", output::verdict(text(&durability["promise"]), colour));
    for (setting, value) in durability["settings"].as_object().into_iter().flatten() {
        report::field("", format!("{setting} = {}", text(value)));
    }
    Ok(())
}
