//! Results: one report, four forms, written whole or not at all.

use crate::args::{Format, OutputArgs};
use crate::failure::Failure;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use std::io::{self, Write};
use std::path::Path;

/// A table with a heading and remarks.
#[derive(Debug, Default, Clone)]
pub struct Section {
    /// Heading; none for the only section of a report.
    pub heading: Option<String>,
    /// Column names.
    pub columns: Vec<String>,
    /// Rows, each as long as the columns.
    pub rows: Vec<Vec<String>>,
    /// Remarks below the table (tables and markdown only).
    pub notes: Vec<String>,
}

impl Section {
    /// An empty table.
    pub fn new(heading: impl Into<Option<String>>, columns: &[&str]) -> Section {
        Section { heading: heading.into(), columns: columns.iter().map(|c| c.to_string()).collect(), ..Section::default() }
    }

    /// Appends a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }

    /// Columns that hold numbers in every row line up on the right.
    fn is_numeric(&self, column: usize) -> bool {
        // Figures and pairs of figures (`1e-7/3e-6`, `0.99..1.01`), but not names that start with a digit.
        let figure = |cell: &String| {
            cell.starts_with(|c: char| c.is_ascii_digit() || c == '-')
                && cell.chars().all(|c| c.is_ascii_digit() || "+-.e/".contains(c))
        };
        let mut cells =
            self.rows.iter().filter_map(|row| row.get(column)).filter(|cell| !matches!(cell.as_str(), "" | "-")).peekable();
        cells.peek().is_some() && cells.all(figure)
    }
}

/// What a command has to say: sections for people, one value for programs.
#[derive(Debug, Default)]
pub struct Report {
    /// For tables, markdown and CSV.
    pub sections: Vec<Section>,
    /// For JSON.
    pub json: serde_json::Value,
}

impl Report {
    /// The report as text, ending with a newline.
    ///
    /// # Errors
    /// Those of the JSON writer.
    pub fn render(&self, format: Format) -> anyhow::Result<String> {
        let text = match format {
            Format::Json => serde_json::to_string_pretty(&self.json)?,
            Format::Table => self.join(table),
            Format::Md => self.join(markdown),
            Format::Csv => self.join(csv),
        };
        Ok(text.trim_end().to_string() + "\n")
    }

    fn join(&self, one: fn(&Section) -> String) -> String {
        self.sections.iter().map(one).collect::<Vec<_>>().join("\n")
    }

    /// Writes the report where the options say.
    ///
    /// # Errors
    /// Those of the file or of standard output; a closed pipe is [`Failure::PipeClosed`].
    pub fn write(&self, options: &OutputArgs) -> anyhow::Result<()> {
        let text = self.render(options.format)?;
        match &options.out {
            None => print(&text),
            Some(path) => write_whole(path, |file| file.write_all(text.as_bytes())),
        }
    }
}

/// Columns of a table in a file or a pipe, where no terminal tells its width.
const WIDTH_WITHOUT_TERMINAL: u16 = 160;

fn table(section: &Section) -> String {
    let mut out = String::new();
    if let Some(heading) = &section.heading {
        out += &format!("{heading}\n");
    }
    if !section.columns.is_empty() {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
        if table.width().is_none() {
            table.set_width(WIDTH_WITHOUT_TERMINAL);
        }
        table.set_header(&section.columns).add_rows(&section.rows);
        for (position, column) in table.column_iter_mut().enumerate() {
            if section.is_numeric(position) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        out += &format!("{table}\n");
    }
    section.notes.iter().for_each(|note| out += &format!("{note}\n"));
    out
}

fn markdown(section: &Section) -> String {
    let cell = |text: &String| text.replace('|', "\\|").replace('\n', " ");
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut out = section.heading.as_ref().map_or_else(String::new, |heading| format!("## {heading}\n\n"));
    if !section.columns.is_empty() {
        out += &line(section.columns.iter().map(cell).collect());
        out += &line((0..section.columns.len()).map(|c| if section.is_numeric(c) { "---:" } else { "---" }.into()).collect());
        section.rows.iter().for_each(|row| out += &line(row.iter().map(cell).collect()));
    }
    section.notes.iter().for_each(|note| out += &format!("\n{note}\n"));
    out
}

fn csv(section: &Section) -> String {
    let cell = |text: &String| {
        if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.clone() }
    };
    let line = |cells: &Vec<String>| cells.iter().map(cell).collect::<Vec<_>>().join(",") + "\n";
    line(&section.columns) + &section.rows.iter().map(line).collect::<String>()
}

/// Writes to standard output; the reader may have gone.
///
/// # Errors
/// [`Failure::PipeClosed`], or the system's error.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::PipeClosed.into()),
        result => Ok(result?),
    }
}

/// Writes a file whole or not at all: into a temporary file beside it, which takes its name at the end.
///
/// # Errors
/// [`Failure::Output`], and nothing is left behind.
pub fn write_whole(path: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
    let failed = |source: io::Error| Failure::Output { path: path.to_path_buf(), source };
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    builder.prefix(".upsweep-");
    #[cfg(unix)]
    {
        // A temporary file is its owner's alone; a result has the permissions of any new file, less the umask.
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let mut file = builder.tempfile_in(folder).map_err(failed)?;
    {
        let mut buffered = io::BufWriter::new(file.as_file_mut());
        content(&mut buffered).and_then(|()| buffered.flush()).map_err(failed)?;
    }
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_forms() {
        let mut section = Section::new(Some("Rungs".to_string()), &["name", "ms"]);
        section.row(["a|b, \"c\"".into(), "1.5".into()]);
        section.notes.push("a note".into());
        let report = Report { sections: vec![section], json: serde_json::json!({"rows": [1]}) };
        assert_eq!(report.render(Format::Csv).unwrap(), "name,ms\n\"a|b, \"\"c\"\"\",1.5\n");
        assert_eq!(
            report.render(Format::Md).unwrap(),
            "## Rungs\n\n| name | ms |\n| --- | ---: |\n| a\\|b, \"c\" | 1.5 |\n\na note\n"
        );
        assert!(report.render(Format::Table).unwrap().contains("a note"));
        assert_eq!(report.render(Format::Json).unwrap(), "{\n  \"rows\": [\n    1\n  ]\n}\n");
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.txt");
        std::fs::write(&path, "before").unwrap();
        let broken = |file: &mut dyn Write| file.write_all(b"half").and_then(|()| Err(io::Error::other("disk is full")));
        assert!(write_whole(&path, broken).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "before");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        write_whole(&path, |file| file.write_all(b"after")).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "after");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
