package main

import (
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed contents.txt
var contents string

//go:embed page.html
var pageTemplate string

//go:embed page.css
var style []byte

// front is the text that becomes index.html.
const front = "README.md"

// group is a heading of the contents with its pages.
type group struct {
	Title string
	Pages []*page
}

// page is one text.
type page struct {
	Source   string // its path in the repository
	File     string // its name in the site
	Title    string
	Sections []section // of the second level
	Body     template.HTML

	ids map[string]bool // of all headings
}

type section struct{ ID, Title string }

// site is a set of pages and the files that they show.
type site struct {
	groups []group
	pages  map[string]*page // by Source
	files  map[string]bool  // other files that pages link to, by path in the repository
}

// run writes the site of a repository into a folder. The pages that were there before are removed.
func run(repository fs.FS, folder string) error {
	s, err := build(repository, contents)
	if err != nil {
		return err
	}
	out, err := s.render(repository)
	if err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(folder, "*.html"))
	if err != nil {
		return err
	}
	for _, file := range old {
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	for name, data := range out {
		to := filepath.Join(folder, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// build reads the pages that a list of contents names, and checks their links. A line "# TITLE" of the list begins a
// group; other lines are paths of texts.
func build(repository fs.FS, contents string) (*site, error) {
	s := &site{pages: map[string]*page{}, files: map[string]bool{}}
	for line := range strings.Lines(contents) {
		line = strings.TrimSpace(line)
		title, heading := strings.CutPrefix(line, "# ")
		switch {
		case line == "":
		case heading:
			s.groups = append(s.groups, group{Title: title})
		case len(s.groups) == 0:
			return nil, fmt.Errorf("the contents name %s before a heading", line)
		default:
			p := &page{Source: line, File: fileOf(line)}
			s.pages[line] = p
			last := &s.groups[len(s.groups)-1]
			last.Pages = append(last.Pages, p)
		}
	}
	var problems []error
	for _, source := range slices.Sorted(maps.Keys(s.pages)) {
		problems = append(problems, s.read(repository, s.pages[source]))
	}
	problems = append(problems, s.unlisted(repository))
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	for _, source := range slices.Sorted(maps.Keys(s.pages)) {
		problems = append(problems, s.link(repository, s.pages[source]))
	}
	return s, errors.Join(problems...)
}

// fileOf returns the name of a text's page: all pages are in one folder.
func fileOf(source string) string {
	if source == front {
		return "index.html"
	}
	return strings.ToLower(strings.TrimSuffix(path.Base(source), ".md")) + ".html"
}

// unlisted returns an error if the repository has texts that the contents lack.
func (s *site) unlisted(repository fs.FS) error {
	var problems []error
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		texts, err := fs.Glob(repository, pattern)
		if err != nil {
			return err
		}
		for _, text := range texts {
			if s.pages[text] == nil {
				problems = append(problems, fmt.Errorf("docs/site/contents.txt does not list %s", text))
			}
		}
	}
	return errors.Join(problems...)
}

// render returns the files of the site by their names.
func (s *site) render(repository fs.FS) (map[string][]byte, error) {
	t, err := template.New("page").Parse(pageTemplate)
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{"page.css": style}
	for _, p := range s.pages {
		var b strings.Builder
		view := struct {
			*page
			Groups []group
		}{p, s.groups}
		if err := t.Execute(&b, view); err != nil {
			return nil, err
		}
		out[p.File] = []byte(b.String())
	}
	for file := range s.files {
		if out[placeOf(file)], err = fs.ReadFile(repository, file); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// placeOf returns where the site has a file that is no page. Browsers show a text without a suffix only as a download.
func placeOf(file string) string {
	place := strings.TrimPrefix(file, "docs/")
	if path.Ext(place) == "" {
		place += ".txt"
	}
	return place
}
