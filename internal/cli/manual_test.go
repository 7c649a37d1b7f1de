package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestManuals(t *testing.T) {
	root := &cobra.Command{Use: "tool", Short: "does things", Long: "It does things.\n\n.dots and 'quotes' begin lines, and a\\b stays."}
	sub := &cobra.Command{Use: "make FILE", Short: "Make a file", Long: "Makes a file. docs/file.md says more.", Example: "  tool make a-file", Run: func(*cobra.Command, []string) {}}
	sub.Flags().StringP("size", "s", "4k", "the file's `size`")
	sub.Flags().Bool("secret", false, "unknown")
	if err := sub.Flags().MarkHidden("secret"); err != nil {
		t.Fatal(err)
	}
	hidden := &cobra.Command{Use: "hide", Hidden: true, Run: func(*cobra.Command, []string) {}}
	root.AddCommand(sub, hidden)
	Prepare(root, "v1.2.3")
	folder := filepath.Join(t.TempDir(), "man1")
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetArgs([]string{"man", folder})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != "tool.1\ntool-make.1\ntool-completion.1\n" {
		t.Errorf("%q", got)
	}
	page := func(name string) string {
		b, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for name, wants := range map[string][]string{
		"tool.1": {".TH TOOL 1 \"\" \"tool v1.2.3\" \"User Commands\"\n", "\ntool \\- does things\n", "\n.PP\n\\&.dots and \\(aqquotes\\(aq begin lines, and a\\eb stays.\n",
			".SH COMMANDS\n.TP\n\\fBtool\\-make\\fP(1)\nMake a file.\n"},
		"tool-make.1": {"\\fBtool make\\fP FILE [flags]\n", "docs/file.md says more.\n.PP\nThe folder docs is in /usr/share/doc/dcol, or", ".TP\n\\fB\\-s\\fP, \\fB\\-\\-size\\fP \\fIsize\\fP\nthe file\\(aqs size (default 4k)\n",
			".nf\n  tool make a\\-file\n.fi\n", ".BR tool (1),\n.BR tool\\-completion (1)\n"},
	} {
		for _, want := range wants {
			if !strings.Contains(page(name), want) {
				t.Errorf("%s lacks %q:\n%s", name, want, page(name))
			}
		}
		if strings.Contains(page(name), "/usr/share/doc") != strings.Contains(page(name), "docs/file.md") {
			t.Errorf("%s tells of texts that it does not name:\n%s", name, page(name))
		}
		if strings.Contains(page(name), "secret") || strings.Contains(page(name), "hide") {
			t.Errorf("%s shows what is hidden:\n%s", name, page(name))
		}
	}
}
