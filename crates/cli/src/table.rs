//! Tables for people: a line of headings and a line for each thing, in columns.
//!
//! `-` stands for nothing. On a terminal that is too narrow, a row continues in indented lines, and
//! so do the headings. Nothing is cut, but a continued line of dashes is left out.

use control::text::printable;
use unicode_width::UnicodeWidthStr;

const GAP: usize = 2;
/// Indent of the lines in which a row continues.
const INDENT: usize = 4;

/// A column, by its heading.
#[derive(Clone, Copy, Debug)]
pub enum Column {
    /// Text, on the left.
    Left(&'static str),
    /// Numbers, on the right.
    Right(&'static str),
    /// Text on the left, in a column that is not shown if no row has any.
    IfAny(&'static str),
}

impl Column {
    fn heading(self) -> &'static str {
        match self {
            Column::Left(heading) | Column::Right(heading) | Column::IfAny(heading) => heading,
        }
    }
}

/// Returns a table whose lines have at most `width` columns, if there is a width. A single longer
/// cell is not broken.
pub fn table<const N: usize>(
    columns: [Column; N],
    rows: impl IntoIterator<Item = [String; N]>,
    width: Option<usize>,
) -> String {
    let cells = |row: [String; N]| row.map(|cell| printable(&cell));
    let rows: Vec<[String; N]> = rows.into_iter().map(cells).collect();
    let is_shown = |at: &usize| {
        !matches!(columns[*at], Column::IfAny(_)) || rows.iter().any(|row| !row[*at].is_empty())
    };
    let dashed = |row: &[String; N]| {
        row.each_ref().map(|cell| if cell.is_empty() { "-".to_owned() } else { cell.clone() })
    };
    let headings = columns.map(|column| column.heading().to_owned());
    let rows: Vec<[String; N]> = std::iter::once(headings).chain(rows.iter().map(dashed)).collect();
    let wide = |at: usize| rows.iter().map(|row| row[at].width()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(wide).collect();

    let mut lines: Vec<Vec<usize>> = vec![Vec::new()];
    let mut used = 0;
    for at in (0..N).filter(is_shown) {
        if width.is_some_and(|width| used > 0 && used + widths[at] > width) {
            lines.push(Vec::new());
            used = INDENT;
        }
        lines.last_mut().expect("one is there").push(at);
        used += widths[at] + GAP;
    }

    let mut text = String::new();
    for row in &rows {
        for (number, line) in lines.iter().enumerate() {
            if number > 0 && line.iter().all(|&at| row[at] == "-") {
                continue;
            }
            let mut words = " ".repeat(if number > 0 { INDENT } else { 0 });
            for &at in line {
                let fill = " ".repeat(widths[at] - row[at].width());
                words += &match columns[at] {
                    Column::Right(_) => fill + &row[at],
                    Column::Left(_) | Column::IfAny(_) => row[at].clone() + &fill,
                };
                words += &" ".repeat(GAP);
            }
            text += words.trim_end();
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(width: Option<usize>, notes: &str) -> String {
        let columns = [
            Column::Left("NAME"),
            Column::Right("USED"),
            Column::Left("MOUNTED"),
            Column::IfAny("NOTES"),
        ];
        let row = |cells: [&str; 4]| cells.map(str::to_owned);
        let rows = [row(["root", "1.5G", "/mnt", ""]), row(["日本/a\u{1b}", "7", "", notes])];
        table(columns, rows, width)
    }

    /// Goal: columns align, numbers on the right, by the width of what a terminal shows. A column
    /// without contents is not shown, and a cell without is a dash.
    #[test]
    fn a_table_has_aligned_columns() {
        let text = "NAME          USED  MOUNTED\n\
                    root          1.5G  /mnt\n\
                    日本/a\\u{1b}     7  -\n";
        assert_eq!(of(None, ""), text);
        assert_eq!(of(Some(80), ""), text);
        assert!(of(None, "read-only").contains("     7  -        read-only\n"));
    }

    /// Goal: no line is longer than the terminal, and nothing is missing. Method: each width down
    /// to 20, and one that is less than a cell.
    #[test]
    fn a_narrow_terminal_has_rows_of_several_lines() {
        let words = ["root", "1.5G", "/mnt", "日本/a\\u{1b}", "a rather long note"];
        for width in (20..80).chain([1, 0]) {
            let text = of(Some(width), words[4]);
            assert!(words.iter().all(|word| text.contains(word)), "{width}: {text}");
            let widest = text.lines().map(UnicodeWidthStr::width).max();
            assert!(width < 22 || widest <= Some(width), "{width}: {text}");
        }
        let text = of(Some(40), words[4]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["NAME          USED  MOUNTED", "    NOTES"]);
        assert!(lines[2].starts_with("root") && lines[3].starts_with("日本"), "{text}");
        assert_eq!(lines[4..], ["    a rather long note"]);
    }
}
