//! `petstore log export`: every commit as one line of JSON.

use std::io::{self, BufWriter};

use application::transfer;
use chrono::Utc;

use super::walk::Progress;
use crate::{store_url::StoreUrl, wire};

pub(super) async fn run(url: &StoreUrl) -> anyhow::Result<()> {
    let log = wire::open_existing_log(url).await?;
    let out = BufWriter::new(io::stdout().lock());
    let progress = Progress::start(&*log).await?;
    transfer::export(&*log, out, Utc::now(), |position| progress.at(position)).await?;
    Ok(())
}
