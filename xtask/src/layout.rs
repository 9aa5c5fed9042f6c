//! The structs on disk, read from the text of their sources: each field's name, offset and size.
//!
//! Every such struct is `repr(C)` of unaligned little-endian numbers, bytes and arrays of them, so
//! an offset is the sum of the sizes before it.

use std::collections::BTreeMap;

use crate::constants;
use crate::sources::Source;

/// A struct on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) name: String,
    /// Heading of `docs/FORMAT.md` that its comment names.
    pub(crate) anchor: Option<String>,
    pub(crate) fields: Vec<Field>,
    pub(crate) size: u64,
}

/// A field of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    /// Its comment.
    pub(crate) comment: String,
}

/// Returns every struct whose name ends in `Disk`, or the reason why one can't be read.
pub(crate) fn layouts(sources: &[&Source]) -> Result<Vec<Layout>, String> {
    let constants = constants::values(sources);
    let mut sizes = BTreeMap::new();
    let mut layouts = Vec::new();
    for source in sources {
        let lines: Vec<&str> = source.code_lines().map(|(_, line)| line.trim()).collect();
        for (at, line) in lines.iter().enumerate() {
            if let Some(name) = struct_name(line) {
                let layout = read(name, &lines, at, &constants, &sizes)
                    .map_err(|error| format!("{}: {name}: {error}", source.path))?;
                sizes.insert(layout.name.clone(), layout.size);
                layouts.push(layout);
            }
        }
    }
    Ok(layouts)
}

fn struct_name(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub ").unwrap_or(line);
    let name = line.strip_prefix("struct ")?.strip_suffix(" {")?;
    name.ends_with("Disk").then_some(name)
}

fn read(
    name: &str,
    lines: &[&str],
    at: usize,
    constants: &BTreeMap<String, u64>,
    sizes: &BTreeMap<String, u64>,
) -> Result<Layout, String> {
    let above = lines.get(..at).unwrap_or(&[]).iter().rev();
    let attributes: Vec<&&str> =
        above.take_while(|line| line.starts_with("///") || line.starts_with("#[")).collect();
    if !attributes.iter().any(|line| **line == "#[repr(C)]") {
        return Err("is not repr(C)".to_owned());
    }
    let anchor = attributes.iter().find_map(|line| {
        let (_, anchor) = line.split_once("docs/FORMAT.md#")?;
        Some(anchor.split('`').next().unwrap_or("").to_owned())
    });
    let mut layout = Layout { name: name.to_owned(), anchor, fields: Vec::new(), size: 0 };
    let mut comment: Vec<&str> = Vec::new();
    for line in lines.get(at + 1..).unwrap_or(&[]).iter().take_while(|line| **line != "}") {
        if let Some(text) = line.strip_prefix("///") {
            comment.push(text.trim());
            continue;
        }
        let field = line.strip_prefix("pub ").unwrap_or(line);
        let (name, kind) = field.split_once(':').ok_or(format!("no field: {line}"))?;
        let kind = kind.trim().trim_end_matches(',');
        let size = size_of_type(kind, constants, sizes)
            .ok_or(format!("field {name} has a type of unknown size: {kind}"))?;
        let comment = std::mem::take(&mut comment).join(" ");
        layout.fields.push(Field { name: name.to_owned(), offset: layout.size, size, comment });
        layout.size += size;
    }
    Ok(layout)
}

fn size_of_type(
    kind: &str,
    constants: &BTreeMap<String, u64>,
    sizes: &BTreeMap<String, u64>,
) -> Option<u64> {
    if let Some(array) = kind.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        let (item, count) = array.split_once(';')?;
        let count = constants::evaluate(count.trim(), constants)?;
        return size_of_type(item.trim(), constants, sizes)?.checked_mul(count);
    }
    match kind {
        "u8" => Some(1),
        "U16" => Some(2),
        "U32" => Some(4),
        "U64" => Some(8),
        other => sizes.get(other).copied(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layouts_of(text: &str) -> Result<Vec<Layout>, String> {
        layouts(&[&Source { path: "a.rs".to_owned(), text: text.to_owned() }])
    }

    #[test]
    fn offsets_are_sums_of_sizes() {
        let text = "pub const N: usize = 3;\n#[repr(C)]\nstruct InnerDisk {\n    a: U16,\n}\n\
                    /// Format: `docs/FORMAT.md#outer`.\n#[repr(C)]\npub struct OuterDisk {\n\
                    \x20   /// What it is.\n    /// And more.\n    pub x: u8,\n\
                    \x20   y: [InnerDisk; N],\n    z: [u8; 2 * 4],\n    w: U64,\n}\n";
        let found = layouts_of(text).expect("all types are known");
        assert_eq!(found[1].size, 1 + 6 + 8 + 8);
        assert_eq!(found[1].anchor.as_deref(), Some("outer"));
        let fields: Vec<_> =
            found[1].fields.iter().map(|f| (f.name.as_str(), f.offset, f.size)).collect();
        assert_eq!(fields, [("x", 0, 1), ("y", 1, 6), ("z", 7, 8), ("w", 15, 8)]);
        assert_eq!(found[1].fields[0].comment, "What it is. And more.");
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        assert!(layouts_of("struct ADisk {\n    a: U16,\n}\n").is_err(), "not repr(C)");
        assert!(layouts_of("#[repr(C)]\nstruct ADisk {\n    a: u32,\n}\n").is_err(), "u32");
        assert!(layouts_of("#[repr(C)]\nstruct ADisk {\n    a: [u8; M],\n}\n").is_err(), "M");
    }
}
