//! Text tables with aligned columns.

use std::fmt;

/// Rows below a heading: the first columns are left-aligned, the figures right-aligned.
pub(crate) struct Table {
    left: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table whose first `left` columns hold words.
    pub(crate) fn new<const N: usize>(left: usize, heading: [&str; N]) -> Table {
        Table { left, rows: vec![heading.map(str::to_owned).to_vec()] }
    }

    pub(crate) fn row(&mut self, cells: impl Into<Vec<String>>) {
        self.rows.push(cells.into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
        };
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let gap = if column == 0 { "" } else { "  " };
                line += &match column < self.left {
                    true => format!("{gap}{cell:width$}"),
                    false => format!("{gap}{cell:>width$}"),
                };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
