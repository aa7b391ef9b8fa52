//! Rows of a table of an SQLite database, read without its library: a kernel's history must be neither
//! locked nor changed, and its bytes are whatever its user likes. Only what a table with row ids needs of
//! the file format (<https://www.sqlite.org/fileformat2.html>), and no write-ahead log. Total and bounded.

use thiserror::Error;

/// Where the bytes of a database come from.
pub trait ReadAt {
    /// Fills `buffer` with the bytes at `offset`; `false` if they are not all there.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> bool;
}

/// A database that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SqliteError {
    /// Another kind of file.
    #[error("it is no SQLite database")]
    NotSqlite,
    /// A feature that IPython does not use.
    #[error("it keeps {0}, which is not read")]
    Unsupported(&'static str),
    /// The table is not there.
    #[error("it has no table `{0}`")]
    NoTable(&'static str),
    /// The file contradicts itself, or was written to meanwhile.
    #[error("it is damaged, or was written to at the same time")]
    Damaged,
    /// More pages than are looked at.
    #[error("it is too large")]
    TooLarge,
}

/// Pages that one look goes through: those of [`MAX_BYTES`], and the way to them.
const MAX_PAGES: usize = 16 * 1024;

/// Bytes of a row that are read; a longer one is left out.
const MAX_ROW: u64 = 8 << 20;

/// Bytes of all rows that one look reads.
const MAX_BYTES: usize = 32 << 20;

/// Levels of a tree: with 4 KiB pages, five hold all that a file can.
const MAX_DEPTH: usize = 16;

const HEADER: usize = 100;

/// A value of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing, a floating-point number or bytes: IPython stores none.
    Other,
    /// A number.
    Integer(i64),
    /// Text.
    Text(String),
}

impl Value {
    /// The number.
    pub fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            _ => None,
        }
    }

    /// The text.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its id.
    pub id: i64,
    /// Its values, in the order of the columns.
    pub values: Vec<Value>,
}

/// A database at one moment.
pub struct Database<'a> {
    file: &'a dyn ReadAt,
    page_size: usize,
    /// Bytes of a page that are used.
    usable: usize,
    pages: u64,
    /// Changes at each transaction.
    change: u32,
    /// Pages and bytes that may still be read.
    budget: usize,
    bytes: usize,
}

/// A page of a tree.
struct Page {
    bytes: Vec<u8>,
    /// Where its header begins.
    start: usize,
    is_leaf: bool,
    cells: usize,
}

impl<'a> Database<'a> {
    /// Looks at the header.
    ///
    /// # Errors
    ///
    /// [`SqliteError`].
    pub fn open(file: &'a dyn ReadAt) -> Result<Self, SqliteError> {
        let mut header = [0; HEADER];
        if !file.read_at(&mut header, 0) || !header.starts_with(b"SQLite format 3\0") {
            return Err(SqliteError::NotSqlite);
        }
        if header[18] != 1 || header[19] != 1 {
            return Err(SqliteError::Unsupported("a write-ahead log"));
        }
        if u32_at(&header, 56) != Some(1) {
            return Err(SqliteError::Unsupported("text that is not UTF-8"));
        }
        let page_size = match u16::from_be_bytes([header[16], header[17]]) {
            1 => 65_536,
            size => usize::from(size),
        };
        let usable = page_size.saturating_sub(usize::from(header[20]));
        if !page_size.is_power_of_two() || usable < 480 {
            return Err(SqliteError::Damaged);
        }
        Ok(Self {
            file,
            page_size,
            usable,
            pages: u64::from(u32_at(&header, 28).unwrap_or(0)),
            change: u32_at(&header, 24).unwrap_or(0),
            budget: MAX_PAGES,
            bytes: MAX_BYTES,
        })
    }

    /// Number of the last transaction.
    pub fn change(&self) -> u32 {
        self.change
    }

    /// The first page of a table.
    ///
    /// # Errors
    ///
    /// [`SqliteError`]; there may be no such table.
    pub fn table(&mut self, name: &'static str) -> Result<u32, SqliteError> {
        // Type, name, name of the table, first page, SQL.
        let schema = self.rows_after(1, 0)?;
        let found = schema.iter().find(|row| {
            let text = |index: usize| row.values.get(index).and_then(Value::text);
            text(0) == Some("table") && text(1) == Some(name)
        });
        let page = found.and_then(|row| row.values.get(3)?.integer());
        page.and_then(|page| u32::try_from(page).ok()).ok_or(SqliteError::NoTable(name))
    }

    /// The highest id of a table, 0 of an empty one.
    ///
    /// # Errors
    ///
    /// [`SqliteError`].
    pub fn last_id(&mut self, table: u32) -> Result<i64, SqliteError> {
        let mut number = table;
        for _ in 0..MAX_DEPTH {
            let page = self.page(number)?;
            if !page.is_leaf {
                number = u32_at(&page.bytes, page.start + 8).ok_or(SqliteError::Damaged)?;
                continue;
            }
            let Some(last) = page.cells.checked_sub(1) else { return Ok(0) };
            return Ok(self.leaf_cell(&page, last)?.0);
        }
        Err(SqliteError::Damaged)
    }

    /// The rows of a table with higher ids than `after`, in their order.
    ///
    /// # Errors
    ///
    /// [`SqliteError`].
    pub fn rows_after(&mut self, table: u32, after: i64) -> Result<Vec<Row>, SqliteError> {
        let mut rows = Vec::new();
        self.collect(table, after, 0, &mut rows)?;
        Ok(rows)
    }

    fn collect(
        &mut self,
        number: u32,
        after: i64,
        depth: usize,
        rows: &mut Vec<Row>,
    ) -> Result<(), SqliteError> {
        if depth == MAX_DEPTH {
            return Err(SqliteError::Damaged);
        }
        let page = self.page(number)?;
        if page.is_leaf {
            for index in 0..page.cells {
                let (id, length, payload) = self.leaf_cell(&page, index)?;
                if id > after && length <= MAX_ROW {
                    let bytes = self.payload(&page.bytes, payload, length as usize)?;
                    rows.push(Row { id, values: record(&bytes).ok_or(SqliteError::Damaged)? });
                }
            }
            return Ok(());
        }
        for index in 0..page.cells {
            let cell = cell_at(&page, index).ok_or(SqliteError::Damaged)?;
            let child = u32_at(&page.bytes, cell).ok_or(SqliteError::Damaged)?;
            // Ids of the child are at most this.
            let (most, _) = varint(&page.bytes, cell + 4).ok_or(SqliteError::Damaged)?;
            if most as i64 > after {
                self.collect(child, after, depth + 1, rows)?;
            }
        }
        let last = u32_at(&page.bytes, page.start + 8).ok_or(SqliteError::Damaged)?;
        self.collect(last, after, depth + 1, rows)
    }

    fn read_page(&mut self, number: u32) -> Result<Vec<u8>, SqliteError> {
        self.budget = self.budget.checked_sub(1).ok_or(SqliteError::TooLarge)?;
        let index = u64::from(number).checked_sub(1).filter(|index| *index < self.pages);
        let index = index.ok_or(SqliteError::Damaged)?;
        let mut bytes = vec![0; self.page_size];
        if !self.file.read_at(&mut bytes, index * self.page_size as u64) {
            return Err(SqliteError::Damaged);
        }
        bytes.truncate(self.usable);
        Ok(bytes)
    }

    fn page(&mut self, number: u32) -> Result<Page, SqliteError> {
        let bytes = self.read_page(number)?;
        let start = if number == 1 { HEADER } else { 0 };
        let is_leaf = match bytes.get(start) {
            Some(0x0d) => true,
            Some(0x05) => false,
            _ => return Err(SqliteError::Damaged),
        };
        let cells = usize::from(u16_at(&bytes, start + 3).ok_or(SqliteError::Damaged)?);
        Ok(Page { bytes, start, is_leaf, cells })
    }

    /// Of a row: its id, the bytes of its values, and where in the page these begin.
    fn leaf_cell(&self, page: &Page, index: usize) -> Result<(i64, u64, usize), SqliteError> {
        let parse = || {
            let cell = cell_at(page, index)?;
            let (length, at) = varint(&page.bytes, cell)?;
            let (id, at) = varint(&page.bytes, at)?;
            Some((id as i64, length, at))
        };
        parse().ok_or(SqliteError::Damaged)
    }

    /// The values of a row, part of which may be on pages of their own.
    fn payload(&mut self, page: &[u8], at: usize, length: usize) -> Result<Vec<u8>, SqliteError> {
        self.bytes = self.bytes.checked_sub(length).ok_or(SqliteError::TooLarge)?;
        let most = self.usable - 35;
        let local = if length <= most {
            length
        } else {
            let least = (self.usable - 12) * 32 / 255 - 23;
            let wanted = least + (length - least) % (self.usable - 4);
            if wanted <= most { wanted } else { least }
        };
        let mut bytes = page.get(at..at + local).ok_or(SqliteError::Damaged)?.to_vec();
        let mut next = u32_at(page, at + local);
        while bytes.len() < length {
            let overflow = self.read_page(next.ok_or(SqliteError::Damaged)?)?;
            next = u32_at(&overflow, 0);
            let rest = overflow.get(4..).unwrap_or_default();
            bytes.extend(rest.iter().take(length - bytes.len()));
        }
        Ok(bytes)
    }
}

/// Where a cell of a page begins.
fn cell_at(page: &Page, index: usize) -> Option<usize> {
    let header = if page.is_leaf { 8 } else { 12 };
    u16_at(&page.bytes, page.start + header + 2 * index).map(usize::from)
}

/// The values of a row.
fn record(bytes: &[u8]) -> Option<Vec<Value>> {
    let (header, mut at) = varint(bytes, 0)?;
    let header = usize::try_from(header).ok()?;
    let mut values = Vec::new();
    let mut data = header;
    while at < header {
        let (kind, next) = varint(bytes, at)?;
        at = next;
        let size = match kind {
            0 | 8 | 9 => 0,
            1..=4 => kind as usize,
            5 => 6,
            6 | 7 => 8,
            10 | 11 => return None,
            _ => usize::try_from((kind - 12) / 2).ok()?,
        };
        let value = bytes.get(data..data.checked_add(size)?)?;
        data += size;
        values.push(match kind {
            8 | 9 => Value::Integer(kind as i64 - 8),
            1..=6 => Value::Integer(integer(value)),
            13.. if kind % 2 == 1 => Value::Text(String::from_utf8_lossy(value).into_owned()),
            _ => Value::Other,
        });
    }
    Some(values)
}

fn integer(bytes: &[u8]) -> i64 {
    let negative = bytes.first().is_some_and(|&first| first >= 0x80);
    bytes.iter().fold(if negative { -1 } else { 0 }, |value, &byte| value << 8 | i64::from(byte))
}

/// A number of one to nine bytes, and where it ends.
fn varint(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for index in 0..9 {
        let byte = *bytes.get(at + index)?;
        if index == 8 {
            return Some((value << 8 | u64::from(byte), at + 9));
        }
        value = value << 7 | u64::from(byte & 0x7f);
        if byte < 0x80 {
            return Some((value, at + index + 1));
        }
    }
    None
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests;
