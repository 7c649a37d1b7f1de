package main

import (
	"bytes"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer/html"
	nethtml "golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// markdown converts our own texts, which may contain HTML.
func markdown() goldmark.Markdown {
	return goldmark.New(
		goldmark.WithExtensions(extension.GFM),
		goldmark.WithParserOptions(parser.WithAutoHeadingID()),
		goldmark.WithRendererOptions(html.WithUnsafe()),
	)
}

// anchors gives headings the anchors that GitHub gives them, so that the links in the texts work in both places.
type anchors map[string]bool

// Generate returns the anchor of a heading's text.
func (a anchors) Generate(text []byte, _ ast.NodeKind) []byte {
	var b strings.Builder
	for _, r := range strings.ToLower(strings.TrimSpace(string(text))) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-', r == '_', r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			b.WriteRune(r)
		}
	}
	id := b.String()
	for n := 1; a[id]; n++ {
		id = b.String() + "-" + strconv.Itoa(n)
	}
	a[id] = true
	return []byte(id)
}

// Put records an anchor that a text sets itself.
func (a anchors) Put(id []byte) { a[string(id)] = true }

// read converts a text to HTML.
func (s *site) read(repository fs.FS, p *page) error {
	text, err := fs.ReadFile(repository, p.Source)
	if err != nil {
		return err
	}
	ids := anchors{}
	var out bytes.Buffer
	if err := markdown().Convert(text, &out, parser.WithContext(parser.NewContext(parser.WithIDs(ids)))); err != nil {
		return fmt.Errorf("%s: %w", p.Source, err)
	}
	p.ids, p.Body = ids, template.HTML(out.String()) // the texts are this repository's own
	body, err := p.parse()
	if err != nil {
		return err
	}
	for n := range body.Descendants() {
		switch n.DataAtom {
		case atom.H1:
			if p.Title == "" {
				p.Title = words(n)
			}
		case atom.H2:
			p.Sections = append(p.Sections, section{attribute(n, "id"), words(n)})
		}
	}
	if p.Title == "" {
		return fmt.Errorf("%s has no title", p.Source)
	}
	return nil
}

func (p *page) parse() (*nethtml.Node, error) {
	body := &nethtml.Node{Type: nethtml.ElementNode, Data: "main", DataAtom: atom.Main}
	nodes, err := nethtml.ParseFragment(strings.NewReader(string(p.Body)), body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Source, err)
	}
	for _, n := range nodes {
		body.AppendChild(n)
	}
	return body, nil
}

// link leads the links of a page to other pages, and returns an error for each that leads nowhere.
func (s *site) link(repository fs.FS, p *page) error {
	body, err := p.parse()
	if err != nil {
		return err
	}
	var problems []error
	var tables, pictures []*nethtml.Node
	for n := range body.Descendants() {
		switch n.DataAtom {
		case atom.Table:
			tables = append(tables, n)
		case atom.Img:
			pictures = append(pictures, n)
		}
		for i, a := range n.Attr {
			if n.Type == nethtml.ElementNode && (a.Key == "href" || a.Key == "src" || a.Key == "srcset") {
				if n.Attr[i].Val, err = s.target(repository, p, a.Val); err != nil {
					problems = append(problems, fmt.Errorf("%s: the link %s %w", p.Source, a.Val, err))
				}
			}
		}
	}
	for _, table := range tables { // wide tables scroll, not the page
		wrap(table, atom.Div, nethtml.Attribute{Key: "class", Val: "scroll"}, nethtml.Attribute{Key: "tabindex", Val: "0"})
		allowBreaks(table)
	}
	for _, img := range pictures { // which are too small on a phone lead to their files, as they do on GitHub
		inner := img
		if img.Parent.DataAtom == atom.Picture {
			inner = img.Parent
		}
		if inner.Parent.DataAtom != atom.A {
			wrap(inner, atom.A, nethtml.Attribute{Key: "href", Val: attribute(img, "src")})
		}
	}
	var b strings.Builder
	for n := range body.ChildNodes() {
		problems = append(problems, nethtml.Render(&b, n))
	}
	p.Body = template.HTML(b.String())
	return errors.Join(problems...)
}

// wrap puts a new element around another.
func wrap(inner *nethtml.Node, name atom.Atom, attributes ...nethtml.Attribute) {
	around := &nethtml.Node{Type: nethtml.ElementNode, Data: name.String(), DataAtom: name, Attr: attributes}
	inner.Parent.InsertBefore(around, inner)
	inner.Parent.RemoveChild(inner)
	around.AppendChild(inner)
}

// allowBreaks lets long words of code in a table, such as keys and paths, continue on the next line after their parts.
// Otherwise the columns that have them leave little room for the others.
func allowBreaks(table *nethtml.Node) {
	const long = 20
	var texts []*nethtml.Node
	for n := range table.Descendants() {
		if n.Type == nethtml.TextNode && n.Parent.DataAtom == atom.Code && len(n.Data) > long {
			texts = append(texts, n)
		}
	}
	for _, n := range texts {
		for {
			at := strings.IndexAny(n.Data, "._/,")
			if at < 0 || at == len(n.Data)-1 {
				break
			}
			rest := &nethtml.Node{Type: nethtml.TextNode, Data: n.Data[at+1:]}
			n.Data = n.Data[:at+1]
			next := n.NextSibling
			n.Parent.InsertBefore(&nethtml.Node{Type: nethtml.ElementNode, Data: "wbr", DataAtom: atom.Wbr}, next)
			n.Parent.InsertBefore(rest, next)
			n = rest
		}
	}
}

// target returns where a link of a page leads in the site.
func (s *site) target(repository fs.FS, from *page, link string) (string, error) {
	u, err := url.Parse(link)
	if err != nil {
		return "", err
	}
	if u.IsAbs() {
		return link, nil
	}
	source := from.Source
	if u.Path != "" {
		source = path.Join(path.Dir(from.Source), u.Path)
	}
	to := s.pages[source]
	if to == nil {
		if info, err := fs.Stat(repository, source); err != nil || info.IsDir() {
			return "", errors.New("leads nowhere")
		}
		s.files[source] = true
		return placeOf(source), nil
	}
	if u.Fragment != "" && !to.ids[u.Fragment] {
		return "", fmt.Errorf("names a heading that %s does not have", source)
	}
	u.Path = to.File
	return u.String(), nil
}

func attribute(n *nethtml.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

// words returns the text of an element.
func words(n *nethtml.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == nethtml.TextNode {
			b.WriteString(d.Data)
		}
	}
	return b.String()
}
