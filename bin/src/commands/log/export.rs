//! `petstore log export`: writes a history to standard output.

use std::io::{self, BufWriter};

use anyhow::bail;
use application::transfer::{self, ExportError};
use chrono::Utc;

use super::progress::ProgressDisplay;
use crate::{config::SourceArgument, output, wire};

pub(super) async fn run(source: &SourceArgument) -> anyhow::Result<()> {
    let log = wire::open_source(&source.store, &source.access).await?;
    let progress = ProgressDisplay::through(&*log).await?;
    let out = BufWriter::new(io::stdout().lock());
    match transfer::export(&*log, out, Utc::now(), |position| progress.reached(position)).await {
        Err(ExportError::File(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            bail!("the reader closed the pipe: the export is incomplete")
        }
        Err(ExportError::File(error)) => bail!(
            "cannot write to {}: {error}; the export is incomplete: delete it, and export again where there is room",
            output::destination()
        ),
        Err(ExportError::Log(error)) => Err(error.into()),
        exported => exported.map(|_| ()).map_err(Into::into),
    }
}
