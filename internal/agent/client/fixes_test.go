package client

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/api"
)

func TestFixes(t *testing.T) {
	w := api.Why{
		Connections: []api.Connection{{Note: "the server takes 2 beside the first subflow"}},
		Candidates: []api.Candidate{
			{Taken: true, Why: "the quota of wwan0 is used up"},
			{Why: "the server accepts no more subflows"}, {Why: "a spare: others come first"},
		},
		Note: "this month's 20 GB for detours are used up (client.budget.total)",
	}
	if d := cmp.Diff([]string{fixBudget, fixLimit}, fixesOf(&w)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if got := fixesOf(&api.Why{Note: "no detour leads there now"}); got != nil {
		t.Errorf("without a fix: %q", got)
	}
}

// The words are those of internal/path and its policies, or begin a text that these make.
func TestFixesKnowTheReasons(t *testing.T) {
	var texts strings.Builder
	files, err := filepath.Glob("../../path/*.go")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob("../../path/policy/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Concat(files, more) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if text, ok := n.(*ast.BasicLit); ok && text.Kind == token.STRING {
				if s, err := strconv.Unquote(text.Value); err == nil {
					texts.WriteString(s + "\n")
				}
			}
			return true
		})
	}
	for _, f := range fixes {
		words := strings.TrimPrefix(f.words, "in-band ") // the kind is put in
		if !strings.Contains(texts.String(), words) {
			t.Errorf("internal/path has no reason with %q", f.words)
		}
	}
}
