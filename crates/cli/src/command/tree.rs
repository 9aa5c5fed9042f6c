//! `holdfast copy-in` and `holdfast copy-out`: copies trees of files into and out of a pool.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use format::fileset::ROOT_NAME;
use serde_json::{Value, json};

use super::controlled::{ControlledPool, Opener};
use super::mount::{check_threads, start_log_of};
use super::waiting::carry;
use crate::args::tree::{CopyInArgs, CopyOutArgs, TreeCopyArgs};
use crate::exit;
use crate::output::Output;
use crate::progress::{ProgressOutput, WorkUnit};
use control::size::ByteSize;
use control::text::printable;
use control::{Transfer, TreeCopyRules, TreeSpec, UsageError};
use server::backend::Backend;
use server::status;
use server::tree::THREADS_MAX;

const THREADS_MIN: usize = 2;
const THREADS_DEFAULT_MAX: usize = 16;

/// Returns the log filter without a server: files that were not copied exactly.
fn log_filter() -> String {
    format!("{}=warn", server::tree::LOG_TARGET)
}

#[derive(Clone, Copy)]
enum TreeCopyDirection {
    In,
    Out,
}

impl TreeCopyDirection {
    fn key(self) -> &'static str {
        match self {
            TreeCopyDirection::In => "copied_in",
            TreeCopyDirection::Out => "copied_out",
        }
    }
}

pub(crate) fn copy_in(
    args: &CopyInArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let (file, is_archive) = source_of(&args.source)?;
    start_log_of(&log_filter(), None)?;
    let opener = Opener { backend, members: &args.members };
    let at = ControlledPool::find(&args.pool, opener, true)?;
    let asked = spec_of(&at, &args.pool, &args.path, &args.how, (is_archive, output)).and_then(
        |mut tree| {
            let CopyInArgs { skip_same: skips_same, no_setuid, no_devices, .. } = *args;
            tree.rules = TreeCopyRules { skips_same, no_setuid, no_devices, ..tree.rules };
            if tree.snapshot.is_some() {
                let message = format!("{}: a snapshot never changes", args.pool.display());
                return Err(UsageError::new(message).into());
            }
            check_apart(&at, &tree, &args.source)?;
            let shown = named(&at, &tree);
            let continues = match (tree.is_archive, tree.rules.skips_same) {
                (false, _) | (true, true) => "The same command continues: it skips what is there",
                (true, false) => "The same command with --skip-same continues",
            };
            let facts = carry(&at, &Transfer::CopyIn { tree }, file, shown_as(output), continues)?;
            Ok((shown, facts))
        },
    );
    let (shown, facts) = at.finish(asked)?;
    tell((&shown, TreeCopyDirection::In), &args.source.display().to_string(), &facts, output)
}

pub(crate) fn copy_out(
    args: &CopyOutArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    start_log_of(&log_filter(), None)?;
    let opener = Opener { backend, members: &args.members };
    let at = ControlledPool::find(&args.pool, opener, false)?;
    let is_archive = is_archive(&args.target);
    let asked =
        spec_of(&at, &args.pool, &args.path, &args.how, (is_archive, output)).and_then(|tree| {
            let shown = named(&at, &tree);
            check_outside(&at, &tree, &args.target)?;
            let (file, is_new) = target_of(&args.target, is_archive)?;
            let target = args.target.display();
            let continues = match is_archive {
                false => "The same command continues: it skips what is there".to_owned(),
                true => format!(
                    "{target} may not be whole, and was not verified: remove it, or name another \
                     archive, and run the command again"
                ),
            };
            let done = carry(&at, &Transfer::CopyOut { tree }, file, shown_as(output), &continues);
            if is_new && done.is_err() {
                remove_empty(&args.target);
            }
            Ok((shown, done?))
        });
    let (shown, facts) = at.finish(asked)?;
    let to_stdout = args.target == Path::new("-");
    let target = args.target.display().to_string();
    if to_stdout {
        output.remark(&text_of((&shown, TreeCopyDirection::Out), &target, &facts));
        return Ok(code_of(&facts));
    }
    tell((&shown, TreeCopyDirection::Out), &target, &facts, output)
}

fn shown_as(output: &Output) -> (WorkUnit, &'static str, &Output) {
    (WorkUnit::Bytes("files"), "copied", output)
}

fn named(at: &ControlledPool, tree: &TreeSpec) -> String {
    let snapshot = tree.snapshot.as_ref().map_or(String::new(), |snapshot| format!("@{snapshot}"));
    format!("{}:{}{snapshot}", at.pool.display(), tree.fileset)
}

fn spec_of(
    at: &ControlledPool,
    argument: &Path,
    path: &Path,
    how: &TreeCopyArgs,
    (is_archive, output): (bool, &Output),
) -> anyhow::Result<TreeSpec> {
    if !path.is_absolute() {
        let message = format!("--path {}: begin it with /, the fileset's root", path.display());
        return Err(UsageError::new(message).into());
    }
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = how.threads.unwrap_or((2 * processors).clamp(THREADS_MIN, THREADS_DEFAULT_MAX));
    check_threads(threads, THREADS_MAX)?;
    let (fileset, snapshot) = match &at.snapshot {
        Some(_) => {
            at.named_snapshot(argument).map(|(fileset, snapshot)| (fileset, Some(snapshot)))?
        }
        None => (at.fileset.clone().unwrap_or_else(|| ROOT_NAME.to_owned()), None),
    };
    let path = path.as_os_str().as_bytes().to_vec();
    let verifies = how.verify || how.repair;
    let (rules, counts_work) = (how.rules(), !matches!(output.progress(), ProgressOutput::Silent));
    Ok(TreeSpec { fileset, snapshot, path, is_archive, threads, verifies, counts_work, rules })
}

fn source_of(source: &Path) -> anyhow::Result<(File, bool)> {
    if source == Path::new("-") {
        let stdin = std::io::stdin().as_fd().try_clone_to_owned()?;
        return Ok((File::from(stdin), true));
    }
    let file = File::open(source)
        .with_context(|| format!("{}: check the path of what is copied in", source.display()))?;
    let is_archive = !file.metadata()?.is_dir();
    Ok((file, is_archive))
}

fn is_archive(target: &Path) -> bool {
    let is_tar = target.extension().is_some_and(|extension| extension == "tar");
    target == Path::new("-") || (is_tar && !target.is_dir())
}

/// Refuses a source that contains the target, because copying it would never end.
fn check_apart(at: &ControlledPool, tree: &TreeSpec, source: &Path) -> anyhow::Result<()> {
    if source == Path::new("-") || !source.is_dir() || !at.is_served() {
        return Ok(());
    }
    // If the source is missing, opening it reports that.
    let Ok(place) = std::fs::canonicalize(source) else { return Ok(()) };
    let of_source = id_of(&place);
    for (directory, target) in seen_at(at, tree, &place)? {
        let mut above = target.ancestors().take_while(|it| it.starts_with(&directory));
        anyhow::ensure!(
            of_source.is_none() || !above.any(|it| id_of(it) == of_source),
            "{}: what is copied in would go into it, to {}, and be copied in turn: name a \
             place outside of it with --path",
            source.display(),
            target.display()
        );
    }
    Ok(())
}

/// Refuses a target inside the copied tree, because it would be copied too. A snapshot may be
/// copied into its own fileset.
fn check_outside(at: &ControlledPool, tree: &TreeSpec, target: &Path) -> anyhow::Result<()> {
    if target == Path::new("-") || tree.snapshot.is_some() || !at.is_served() {
        return Ok(());
    }
    let parent = target.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let place = if target.is_dir() { target } else { parent };
    // If the directory is missing, creating the target reports that.
    let Ok(place) = std::fs::canonicalize(place) else { return Ok(()) };
    for (_, source) in seen_at(at, tree, &place)? {
        let of_source = id_of(&source);
        let is_below = place.ancestors().any(|it| of_source.is_some() && id_of(it) == of_source);
        anyhow::ensure!(
            !is_below,
            "{}: it is in the tree that is exported, {}, and would be exported into itself: name a \
             place elsewhere, or export a snapshot",
            target.display(),
            source.display()
        );
    }
    Ok(())
}

/// Returns each mount of the tree's fileset with the path of the tree in it. Empty if `place` is
/// not in a mount of the fileset.
fn seen_at(
    at: &ControlledPool,
    tree: &TreeSpec,
    place: &Path,
) -> anyhow::Result<Vec<(PathBuf, PathBuf)>> {
    let Some(found) = status::find(place)? else { return Ok(Vec::new()) };
    let inside =
        Path::new(OsStr::from_bytes(&tree.path)).strip_prefix("/").unwrap_or(Path::new(""));
    let seen = |directory: PathBuf| (directory.clone(), directory.join(inside));
    Ok(found.directories_of(&at.pool, &tree.fileset).into_iter().map(seen).collect())
}

fn id_of(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|it| (it.dev(), it.ino()))
}

/// Removes a target that was created and is still empty, so that a retry can create it.
fn remove_empty(target: &Path) {
    let is_empty_file =
        std::fs::metadata(target).is_ok_and(|found| found.is_file() && found.len() == 0);
    let _ = if is_empty_file { std::fs::remove_file(target) } else { std::fs::remove_dir(target) };
}

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

fn code_of(facts: &Value) -> u8 {
    if facts["failed"] == 0 { exit::DONE } else { exit::FAILED }
}

fn tell(
    (fileset, way): (&str, TreeCopyDirection),
    other: &str,
    facts: &Value,
    output: &Output,
) -> anyhow::Result<u8> {
    let mut value = json!({ way.key(): other, "fileset": fileset });
    if let (Some(value), Some(facts)) = (value.as_object_mut(), facts.as_object()) {
        value.extend(facts.clone());
    }
    output.fact(&text_of((fileset, way), other, facts), &value);
    Ok(code_of(facts))
}

fn text_of((fileset, way): (&str, TreeCopyDirection), other: &str, facts: &Value) -> String {
    let of = |name: &str| facts[name].as_u64().unwrap_or(0);
    let (other, fileset) = (printable(other), printable(fileset));
    let (what, place) = match way {
        TreeCopyDirection::In => (other, format!("into {fileset}")),
        TreeCopyDirection::Out => (fileset, format!("to {other}")),
    };
    let mut text = format!(
        "{what} is copied {place}: {} files ({}), {} directories",
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
