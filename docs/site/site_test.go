package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/detour-collective/dcol/lab/browser"
)

// Every text of the repository is a page, every link leads somewhere, and every page leads to all others.
func TestSiteOfTheRepository(t *testing.T) {
	repository := os.DirFS("../..")
	s, err := build(repository, contents)
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.render(repository)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.pages) < 15 {
		t.Errorf("only %d pages", len(s.pages))
	}
	for _, from := range s.pages {
		text := string(out[from.File])
		for _, to := range s.pages {
			if !strings.Contains(text, `<a href="`+to.File+`"`) {
				t.Errorf("%s does not lead to %s", from.File, to.File)
			}
		}
		for _, remote := range []string{`src="http`, `<script`, `<link rel="stylesheet" href="http`} {
			if strings.Contains(text, remote) {
				t.Errorf("%s loads something from elsewhere, or runs a script: %s", from.File, remote)
			}
		}
	}
}

func TestBrokenTexts(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a link leads nowhere", "# A\n\n[x](b.md)\n", "README.md: the link b.md leads nowhere"},
		{"a link leads to a folder", "# A\n\n[x](docs)\n", "README.md: the link docs leads nowhere"},
		{"a heading is missing", "# A\n\n[x](docs/c.md#no)\n", "names a heading that docs/c.md does not have"},
		{"a picture is missing", "# A\n\n<picture><source srcset=\"docs/dark.svg\"><img src=\"docs/light.svg\"></picture>\n", "docs/dark.svg leads nowhere"},
		{"there is no title", "words\n", "README.md has no title"},
	} {
		t.Run(c.name, func(t *testing.T) {
			repository := fstest.MapFS{"README.md": {Data: []byte(c.text)}, "docs/c.md": {Data: []byte("# C\n\n## Yes\n")}}
			_, err := build(repository, "# All\nREADME.md\ndocs/c.md\n")
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v", err)
			}
		})
	}
	repository := fstest.MapFS{"README.md": {Data: []byte("# A\n")}, "docs/c.md": {Data: []byte("# C\n")}}
	if _, err := build(repository, "# All\nREADME.md\n"); err == nil || !strings.Contains(err.Error(), "docs/c.md") {
		t.Errorf("a text that no page shows: %v", err)
	}
}

// Anchors are GitHub's, so that a link works in both places.
func TestAnchors(t *testing.T) {
	a := anchors{}
	for heading, want := range map[string]string{
		"`dcol use` and `dcol avoid`":  "dcol-use-and-dcol-avoid",
		"What's new? (1.2), as it is ": "whats-new-12-as-it-is",
		"Über snake_case":              "ber-snake_case",
	} {
		if got := string(a.Generate([]byte(heading), 0)); got != want {
			t.Errorf("%q: %q, not %q", heading, got, want)
		}
	}
	if first, second := string(a.Generate([]byte("Twice"), 0)), string(a.Generate([]byte("Twice"), 0)); first != "twice" || second != "twice-1" {
		t.Errorf("%s, %s", first, second)
	}
}

// Links to pages and headings lead to the pages' files; other files come along.
func TestLinks(t *testing.T) {
	repository := fstest.MapFS{
		"README.md":      {Data: []byte("# A\n\n[c](docs/c.md#yes) [l](LICENSE) [r](https://example.org/x.md)\n\n![p](docs/img/p.svg)\n")},
		"docs/c.md":      {Data: []byte("# C\n\n## Yes\n\n[back](../README.md)\n\n| a |\n|---|\n| b |\n")},
		"docs/img/p.svg": {Data: []byte("<svg/>")}, "LICENSE": {Data: []byte("free")},
	}
	s, err := build(repository, "# All\nREADME.md\ndocs/c.md\n")
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.render(repository)
	if err != nil {
		t.Fatal(err)
	}
	for file, wants := range map[string][]string{
		"index.html":  {`href="c.html#yes"`, `href="LICENSE.txt"`, `href="https://example.org/x.md"`, `<a href="img/p.svg"><img src="img/p.svg"`},
		"c.html":      {`<h2 id="yes">`, `href="index.html"`, `<div class="scroll" tabindex="0"><table>`},
		"img/p.svg":   {"<svg/>"},
		"LICENSE.txt": {"free"},
	} {
		for _, want := range wants {
			if !strings.Contains(string(out[file]), want) {
				t.Errorf("%s lacks %s:\n%s", file, want, out[file])
			}
		}
	}
}

// On a desktop's screen no table is cut, so nobody has to find that it scrolls.
func TestTablesFit(t *testing.T) {
	b, err := browser.Start(t.Context())
	if err != nil {
		t.Skip("needs chromium: ", err)
	}
	t.Cleanup(b.Close)
	repository := os.DirFS("../..")
	s, err := build(repository, contents)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := run(repository, folder); err != nil {
		t.Fatal(err)
	}
	for _, page := range s.pages {
		if err := b.Open("file://" + filepath.Join(folder, page.File)); err != nil {
			t.Fatal(err)
		}
		for _, width := range []int{1024, 1280} {
			if err := b.Look(width, 800, "light"); err != nil {
				t.Fatal(err)
			}
			if err := b.Wait(fmt.Sprintf("document.readyState === 'complete' && innerWidth === %d", width), time.Minute); err != nil {
				t.Fatal(err)
			}
			var cut []string
			const find = `[...document.querySelectorAll('.scroll')].filter((s) => s.scrollWidth > s.clientWidth + 1).map((s) => s.textContent.trim().slice(0, 30))`
			if err := b.Eval(find, &cut); err != nil {
				t.Fatal(err)
			}
			if len(cut) > 0 {
				t.Errorf("%s, %d wide: cut tables %q", page.File, width, cut)
			}
		}
	}
}
