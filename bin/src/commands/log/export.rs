//! `petstore log export`: writes a history to standard output.

use std::io::{self, BufWriter};

use anyhow::bail;
use application::transfer::{self, End, ExportError};
use chrono::Utc;

use super::{progress::ProgressDisplay, until};
use crate::{config::SourceArgument, output};

pub(super) async fn run(source: &SourceArgument, until: Option<End>) -> anyhow::Result<()> {
    let (log, cut) = until::open_source(&source.store, &source.access, until).await?;
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
        Err(error @ (ExportError::NotAnExport { .. } | ExportError::Target(_))) => Err(error.into()),
        Ok(_) => {
            // Standard output has the export.
            if let Some(sentence) = until::describe(&cut) {
                output::print_error(format_args!("petstore: {sentence}"));
            }
            Ok(())
        }
    }
}
