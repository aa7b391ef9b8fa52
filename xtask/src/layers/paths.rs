//! The paths that a file of Rust names, in full: `use` trees, expressions, types, macro bodies.

use std::collections::BTreeMap;

use anyhow::Result;
use syn::{
    Attribute, ImplItem, Item, ItemExternCrate, ItemMod, ItemUse, Macro, Meta, Token, UseTree,
    buffer::{Cursor, TokenBuffer},
    punctuated::Punctuated,
    visit::{self, Visit},
};

/// Every path that a file names outside of its tests. A glob ends in `*`; `self` and `super` are
/// resolved to `crate::…`, and a name that the file gives to something else to that.
pub struct Paths {
    named: Vec<String>,
}

impl Paths {
    /// Those of the file `text`, which is the module `module` (without `crate`).
    ///
    /// # Errors
    ///
    /// When it is not Rust.
    pub fn of(text: &str, module: &[String]) -> Result<Self> {
        let file = syn::parse_file(text)?;
        let mut visitor = Visitor { module: module.to_vec(), ..Visitor::default() };
        visitor.visit_file(&file);
        let named = visitor.named.iter().map(|path| visitor.full(path)).collect();
        Ok(Self { named })
    }

    /// All of them, in the order of the file.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.named.iter().map(String::as_str)
    }
}

/// The modules that a file declares in other files, as paths below it; not those of tests.
///
/// # Errors
///
/// When it is not Rust.
pub fn child_modules(text: &str) -> Result<Vec<Vec<String>>> {
    let mut children = Vec::new();
    children_of(&syn::parse_file(text)?.items, &[], &mut children);
    Ok(children)
}

fn children_of(items: &[Item], prefix: &[String], children: &mut Vec<Vec<String>>) {
    for item in items {
        let Item::Mod(item) = item else { continue };
        if for_tests(&item.attrs) {
            continue;
        }
        let path = [prefix, &[item.ident.to_string()]].concat();
        match &item.content {
            Some((_, items)) => children_of(items, &path, children),
            None => children.push(path),
        }
    }
}

#[derive(Default)]
struct Visitor {
    /// Where the visitor is, without `crate`.
    module: Vec<String>,
    named: Vec<Vec<String>>,
    /// What the file calls by another name, or by its last name alone. Scopes are not told apart:
    /// a name counts in the whole file.
    aliases: BTreeMap<String, Vec<String>>,
}

impl<'ast> Visit<'ast> for Visitor {
    fn visit_item(&mut self, item: &'ast Item) {
        if !for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes = match item {
            ImplItem::Fn(item) => &item.attrs[..],
            ImplItem::Const(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            ImplItem::Macro(item) => &item.attrs,
            _ => &[],
        };
        if !for_tests(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.tree(&[], &item.tree);
    }

    fn visit_item_extern_crate(&mut self, item: &'ast ItemExternCrate) {
        let path = vec![item.ident.to_string()];
        if let Some((_, name)) = &item.rename {
            self.alias(name.to_string(), &path);
        }
        self.named.push(path);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        self.name(&segments);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast Macro) {
        self.visit_path(&item.path);
        let tokens = TokenBuffer::new2(item.tokens.clone());
        self.tokens(tokens.begin());
    }
}

impl Visitor {
    /// A path in code. A single name is a variable, or what a `use` has brought in.
    fn name(&mut self, segments: &[String]) {
        if segments.len() > 1 {
            let path = self.absolute(segments);
            self.named.push(path);
        }
    }

    fn alias(&mut self, name: String, path: &[String]) {
        if path != [name.as_str()] {
            self.aliases.insert(name, path.to_vec());
        }
    }

    fn tree(&mut self, prefix: &[String], tree: &UseTree) {
        let joined = |name: String| {
            let name = if name == "self" && !prefix.is_empty() { vec![] } else { vec![name] };
            [prefix, &name].concat()
        };
        match tree {
            UseTree::Path(path) => self.tree(&joined(path.ident.to_string()), &path.tree),
            UseTree::Name(name) => {
                let path = self.absolute(&joined(name.ident.to_string()));
                if let Some(last) = path.last() {
                    self.alias(last.clone(), &path);
                }
                self.named.push(path);
            }
            UseTree::Rename(rename) => {
                let path = self.absolute(&joined(rename.ident.to_string()));
                self.alias(rename.rename.to_string(), &path);
                self.named.push(path);
            }
            UseTree::Glob(_) => {
                let path = self.absolute(&joined("*".into()));
                self.named.push(path);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.tree(prefix, tree);
                }
            }
        }
    }

    /// Without `self` and `super` at its start.
    fn absolute(&self, segments: &[String]) -> Vec<String> {
        let (mut module, mut rest) = (self.module.clone(), segments);
        while let [first, more @ ..] = rest {
            match first.as_str() {
                "self" => {}
                "super" => drop(module.pop()),
                _ => break,
            }
            rest = more;
        }
        if rest.len() == segments.len() {
            return segments.to_vec();
        }
        [&["crate".to_owned()][..], &module, rest].concat()
    }

    /// With its first name replaced by what that stands for.
    fn full(&self, path: &[String]) -> String {
        let mut path = path.to_vec();
        // Names can stand for each other in a circle in different scopes.
        for _ in 0..self.aliases.len() {
            let Some(first) = path.first() else { break };
            let Some(real) = self.aliases.get(first).filter(|real| real.first() != Some(first))
            else {
                break;
            };
            path.splice(..1, real.iter().cloned());
        }
        path.join("::")
    }

    /// Paths in a macro's body, which need not be Rust.
    fn tokens(&mut self, mut at: Cursor<'_>) {
        let mut path = Vec::new();
        let mut separated = true;
        while !at.eof() {
            if let Some((ident, next)) = at.ident() {
                if !separated {
                    self.name(&std::mem::take(&mut path));
                }
                path.push(ident.to_string());
                (separated, at) = (false, next);
                continue;
            }
            if let Some(next) = colons(at) {
                (separated, at) = (true, next);
                continue;
            }
            self.name(&std::mem::take(&mut path));
            separated = true;
            if let Some((inner, _, _, next)) = at.any_group() {
                self.tokens(inner);
                at = next;
            } else if let Some((_, next)) = at.token_tree() {
                at = next;
            } else {
                break;
            }
        }
        self.name(&path);
    }
}

/// What follows `::`.
fn colons(at: Cursor<'_>) -> Option<Cursor<'_>> {
    let (first, next) = at.punct()?;
    let (second, next) = next.punct()?;
    (first.as_char() == ':' && second.as_char() == ':').then_some(next)
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Is this compiled for tests alone?
fn for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg")
                && attribute.parse_args::<Meta>().is_ok_and(|condition| needs_test(&condition)))
    })
}

fn needs_test(condition: &Meta) -> bool {
    let parts = |list: &syn::MetaList| {
        list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).unwrap_or_default()
    };
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("all") => parts(list).iter().any(needs_test),
        Meta::List(list) if list.path.is_ident("any") => {
            let parts = parts(list);
            !parts.is_empty() && parts.iter().all(needs_test)
        }
        _ => false,
    }
}
