//! Stops a command that root runs on the files of another user. That user could redirect root with links, and could not
//! open the files that root creates.

use std::{
    fs::{self, Metadata},
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use rustix::process::geteuid;

/// Rejects a path for root, if the file, its directory or a link in the path belongs to another user.
pub(crate) fn check_owner(path: &Path) -> Result<(), String> {
    if !geteuid().is_root() {
        return Ok(());
    }
    // Without a slash at its end, which would resolve a link.
    let path = path.components().as_path();
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let files =
        [path, directory.unwrap_or(Path::new("."))].into_iter().filter_map(|part| part.metadata().ok());
    let parts = path.ancestors().filter_map(|part| part.symlink_metadata().ok());
    let owner =
        parts.filter(Metadata::is_symlink).chain(files).map(|about| about.uid()).find(|owner| *owner != 0);
    owner.map_or(Ok(()), |owner| {
        let user = user_name(owner).unwrap_or_else(|| format!("'#{owner}'"));
        Err(format!(
            "root does not work on files of another user, such as {}: run this command as their owner, with \
             `sudo -u {user} petstore …`",
            path.display()
        ))
    })
}

/// The name of a local user. `sudo` takes the number of any other.
fn user_name(id: u32) -> Option<String> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| match line.split(':').collect::<Vec<_>>()[..] {
        [name, _, number, ..] if number == id.to_string() => Some(name.to_owned()),
        _ => None,
    })
}
