//! `holdfast import` and `holdfast export-tree`: trees of files into a pool and out of it.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use format::fileset::ROOT_NAME;
use serde_json::{Value, json};

use super::controlled::{Controlled, Opener};
use super::mount::{check_threads, start_log_of};
use crate::args::tree::{ExportTreeArgs, HowArgs, ImportArgs};
use crate::backend::Backend;
use crate::exit::{self, UsageError};
use crate::output::{Output, printable};
use crate::size::ByteSize;
use crate::status;
use crate::transfer::{Transfer, TreeSpec};
use crate::tree::{Rules, THREADS_MAX};

/// What these commands log, where no server does their work: files that were not copied as they
/// are.
const LOG: &str = "cli::tree=warn";
/// Fewest and most threads where nothing is said.
const THREADS_MIN: usize = 2;
const THREADS_DEFAULT_MAX: usize = 16;

pub(crate) fn import(
    args: &ImportArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let (file, is_archive) = source_of(&args.source)?;
    start_log_of(LOG, None)?;
    let opener = Opener { backend, members: &args.members };
    let at = Controlled::find(&args.pool, opener, true)?;
    let asked = spec_of(&at, &args.pool, &args.path, &args.how, is_archive).and_then(|mut tree| {
        let ImportArgs { skip_same: skips_same, no_setuid, no_devices, .. } = *args;
        tree.rules = Rules { skips_same, no_setuid, no_devices, ..tree.rules };
        if tree.clone.is_some() {
            let message = format!("{}: a clone never changes", args.pool.display());
            return Err(UsageError::new(message).into());
        }
        check_apart(&at, &tree, &args.source)?;
        let shown = named(&at, &tree);
        let facts = ask(&at, &Transfer::Import { tree }, file, ("imported", output))?;
        Ok((shown, facts))
    });
    let (shown, facts) = at.finish(asked)?;
    tell((&shown, "imported"), &args.source.display().to_string(), &facts, output)
}

pub(crate) fn export(
    args: &ExportTreeArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    start_log_of(LOG, None)?;
    let opener = Opener { backend, members: &args.members };
    let at = Controlled::find(&args.pool, opener, false)?;
    let is_archive = is_archive(&args.target);
    let asked = spec_of(&at, &args.pool, &args.path, &args.how, is_archive).and_then(|tree| {
        let shown = named(&at, &tree);
        check_outside(&at, &tree, &args.target)?;
        let (file, is_new) = target_of(&args.target, is_archive)?;
        let done = ask(&at, &Transfer::ExportTree { tree }, file, ("exported", output));
        if is_new && done.is_err() {
            remove_empty(&args.target);
        }
        Ok((shown, done?))
    });
    let (shown, facts) = at.finish(asked)?;
    let to_stdout = args.target == Path::new("-");
    let target = args.target.display().to_string();
    if to_stdout {
        // Standard output has the archive.
        output.remark(&text_of((&shown, "exported"), &target, &facts));
        return Ok(code_of(&facts));
    }
    tell((&shown, "exported"), &target, &facts, output)
}

/// Returns the fileset as people write it.
fn named(at: &Controlled, tree: &TreeSpec) -> String {
    let clone = tree.clone.as_ref().map_or(String::new(), |clone| format!("@{clone}"));
    format!("{}:{}{clone}", at.pool.display(), tree.fileset)
}

fn spec_of(
    at: &Controlled,
    argument: &Path,
    path: &Path,
    how: &HowArgs,
    is_archive: bool,
) -> anyhow::Result<TreeSpec> {
    if !path.is_absolute() {
        let message = format!("--path {}: begin it with /, the fileset's root", path.display());
        return Err(UsageError::new(message).into());
    }
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = how.threads.unwrap_or((2 * processors).clamp(THREADS_MIN, THREADS_DEFAULT_MAX));
    check_threads(threads, THREADS_MAX)?;
    let (fileset, clone) = match &at.clone {
        Some(_) => at.named_clone(argument).map(|(fileset, clone)| (fileset, Some(clone)))?,
        None => (at.fileset.clone().unwrap_or_else(|| ROOT_NAME.to_owned()), None),
    };
    let path = path.as_os_str().as_bytes().to_vec();
    let verifies = how.verify || how.repair;
    Ok(TreeSpec { fileset, clone, path, is_archive, threads, verifies, rules: how.rules() })
}

/// Opens what is imported, and says whether it is a tar.
fn source_of(source: &Path) -> anyhow::Result<(File, bool)> {
    if source == Path::new("-") {
        let stdin = std::io::stdin().as_fd().try_clone_to_owned()?;
        return Ok((File::from(stdin), true));
    }
    let file = File::open(source)
        .with_context(|| format!("{}: check the path of what is imported", source.display()))?;
    let is_archive = !file.metadata()?.is_dir();
    Ok((file, is_archive))
}

fn is_archive(target: &Path) -> bool {
    let is_tar = target.extension().is_some_and(|extension| extension == "tar");
    target == Path::new("-") || (is_tar && !target.is_dir())
}

/// Refuses a source that the tree to be made is in: it would be imported into itself without end.
fn check_apart(at: &Controlled, tree: &TreeSpec, source: &Path) -> anyhow::Result<()> {
    if source == Path::new("-") || !source.is_dir() || !at.is_served() {
        return Ok(());
    }
    // Of a place that cannot be looked at, whoever opens it tells why.
    let Ok(place) = std::fs::canonicalize(source) else { return Ok(()) };
    let of_source = id_of(&place);
    for (directory, target) in seen_at(at, tree, &place)? {
        let mut above = target.ancestors().take_while(|it| it.starts_with(&directory));
        anyhow::ensure!(
            of_source.is_none() || !above.any(|it| id_of(it) == of_source),
            "{}: what is imported would go into it, to {}, and be imported in turn: name a \
             place outside of it with --path",
            source.display(),
            target.display()
        );
    }
    Ok(())
}

/// Refuses a target in the tree that is exported: what is written there would be exported in turn.
/// A clone does not change, so it may be exported into its fileset.
fn check_outside(at: &Controlled, tree: &TreeSpec, target: &Path) -> anyhow::Result<()> {
    if target == Path::new("-") || tree.clone.is_some() || !at.is_served() {
        return Ok(());
    }
    let parent = target.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let place = if target.is_dir() { target } else { parent };
    // Of a place that cannot be looked at, whoever makes the target tells why.
    let Ok(place) = std::fs::canonicalize(place) else { return Ok(()) };
    for (_, source) in seen_at(at, tree, &place)? {
        let of_source = id_of(&source);
        let is_below = place.ancestors().any(|it| of_source.is_some() && id_of(it) == of_source);
        anyhow::ensure!(
            !is_below,
            "{}: it is in the tree that is exported, {}, and would be exported into itself: name a \
             place elsewhere, or export a clone",
            target.display(),
            source.display()
        );
    }
    Ok(())
}

/// Returns each mount of the fileset of `tree`, and where the tree is seen there; none where
/// `place` is on no mount.
fn seen_at(
    at: &Controlled,
    tree: &TreeSpec,
    place: &Path,
) -> anyhow::Result<Vec<(PathBuf, PathBuf)>> {
    let Some(found) = status::find(place)? else { return Ok(Vec::new()) };
    let inside =
        Path::new(OsStr::from_bytes(&tree.path)).strip_prefix("/").unwrap_or(Path::new(""));
    let seen = |directory: PathBuf| (directory.clone(), directory.join(inside));
    Ok(found.directories_of(&at.pool, &tree.fileset).into_iter().map(seen).collect())
}

/// Returns what tells a file from others, whatever name it goes by.
fn id_of(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|it| (it.dev(), it.ino()))
}

/// Removes a target that was made and got nothing, so that it is not in the way of another try.
fn remove_empty(target: &Path) {
    let is_empty_file =
        std::fs::metadata(target).is_ok_and(|found| found.is_file() && found.len() == 0);
    // A directory that is not empty stays.
    let _ = if is_empty_file { std::fs::remove_file(target) } else { std::fs::remove_dir(target) };
}

/// Opens what is exported to, and says whether it was made for that.
fn target_of(target: &Path, is_archive: bool) -> anyhow::Result<(File, bool)> {
    let shown = target.display();
    if target == Path::new("-") {
        let stdout = std::io::stdout().as_fd().try_clone_to_owned()?;
        return Ok((File::from(stdout), false));
    }
    if is_archive {
        let mut options = File::options();
        options.read(true).write(true).create_new(true).mode(0o600);
        let made = options.open(target).with_context(|| {
            format!("{shown}: the archive cannot be made: name one that is not there yet")
        });
        return made.map(|file| (file, true));
    }
    let is_new = match std::fs::create_dir(target) {
        Ok(()) => true,
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => false,
        Err(error) => {
            return Err(error).with_context(|| format!("{shown}: the directory cannot be made"));
        }
    };
    let opened = File::open(target).with_context(|| shown.to_string())?;
    let is_directory = opened.metadata()?.is_dir();
    anyhow::ensure!(
        is_directory,
        "{shown} is no directory: name a directory, or a tar whose name ends in .tar"
    );
    Ok((opened, is_new))
}

fn ask(
    at: &Controlled,
    request: &Transfer,
    file: File,
    (what, output): (&str, &Output),
) -> anyhow::Result<Value> {
    let mut progress = output.progress();
    let told = at.transfer(request, file, &mut |done, total| {
        progress.tell(what, done, total);
        true
    });
    progress.finish();
    told
}

fn code_of(facts: &Value) -> u8 {
    if facts["failed"] == 0 { exit::DONE } else { exit::FAILED }
}

fn tell(
    (fileset, what): (&str, &str),
    other: &str,
    facts: &Value,
    output: &Output,
) -> anyhow::Result<u8> {
    let mut value = json!({ what: other, "fileset": fileset });
    if let (Some(value), Some(facts)) = (value.as_object_mut(), facts.as_object()) {
        value.extend(facts.clone());
    }
    output.fact(&text_of((fileset, what), other, facts), &value);
    Ok(code_of(facts))
}

fn text_of((fileset, what): (&str, &str), other: &str, facts: &Value) -> String {
    let of = |name: &str| facts[name].as_u64().unwrap_or(0);
    let way = if what == "imported" { "into" } else { "from" };
    let mut text = format!(
        "{} is {what} {way} {}: {} files ({}), {} directories",
        printable(other),
        printable(fileset),
        of("files"),
        ByteSize(of("bytes")),
        of("directories"),
    );
    for (name, words) in [
        ("symlinks", "symbolic links"),
        ("others", "devices, fifos and sockets"),
        ("links", "hard links"),
        ("skipped", "were there already"),
        ("replaced", "were replaced"),
        ("verified", "are verified"),
    ] {
        if of(name) > 0 {
            text += &format!(", {} {words}", of(name));
        }
    }
    for (count, list, words) in
        [("left_out", "what_was_left_out", "left out"), ("failed", "errors", "failed")]
    {
        let told = facts[list].as_array().map_or(&[][..], Vec::as_slice);
        for line in told.iter().filter_map(Value::as_str) {
            text += &format!("\n{words}: {}", printable(line));
        }
        let more = of(count).saturating_sub(u64::try_from(told.len()).unwrap_or(0));
        if more > 0 {
            text += &format!(
                "\n{words}: {more} more; see the server's log, or standard error of this command"
            );
        }
    }
    text
}
