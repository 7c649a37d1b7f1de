package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// manualCommand writes manual pages from the texts of --help. Packages and `make install` use it.
func manualCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man FOLDER",
		Short:  "Write a manual page of each command",
		Long:   "Writes a manual page (troff, section 1) of each command into a folder, and prints their names.",
		Hidden: true,
		Args:   Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			return writeManuals(cmd.Root(), args[0], cmd.OutOrStdout())
		},
	}
}

func writeManuals(cmd *cobra.Command, folder string, names io.Writer) error {
	if cmd.Hidden || cmd.Name() == "help" {
		return nil
	}
	name := manualName(cmd) + ".1"
	if err := os.WriteFile(filepath.Join(folder, name), []byte(manual(cmd)), 0o644); err != nil { //nolint:gosec // everyone reads manuals
		return err
	}
	if _, err := fmt.Fprintln(names, name); err != nil {
		return err
	}
	for _, sub := range cmd.Commands() {
		if err := writeManuals(sub, folder, names); err != nil {
			return err
		}
	}
	return nil
}

// manualName joins a command's words, as in dcol-ca-issue.
func manualName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// troff builds a page.
type troff struct{ strings.Builder }

// line writes a line of text. It protects a beginning that troff would take for a request.
func (t *troff) line(text string) {
	escaped := escape(text)
	if strings.HasPrefix(escaped, ".") || strings.HasPrefix(escaped, "'") {
		escaped = `\&` + escaped
	}
	t.WriteString(escaped + "\n")
}

func (t *troff) section(name string) { t.WriteString(".SH " + name + "\n") }

// paragraphs writes text whose paragraphs are separated by empty lines.
func (t *troff) paragraphs(text string) {
	for i, paragraph := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if i > 0 {
			t.WriteString(".PP\n")
		}
		for line := range strings.SplitSeq(paragraph, "\n") {
			t.line(strings.TrimSpace(line))
		}
	}
}

// escape protects characters that troff would change, such as hyphens.
func escape(text string) string {
	return strings.NewReplacer(`\`, `\e`, "-", `\-`, "`", "\\(ga", "'", `\(aq`, "^", `\(ha`, "~", `\(ti`).Replace(text)
}

func manual(cmd *cobra.Command) string {
	t := new(troff)
	name := manualName(cmd)
	root := cmd.Root()
	fmt.Fprintf(t, ".TH %s 1 \"\" \"%s %s\" \"User Commands\"\n", escape(strings.ToUpper(name)), root.Name(), escape(root.Version))
	t.section("NAME")
	short := strings.TrimSuffix(cmd.Short, ".")
	fmt.Fprintf(t, "%s \\- %s\n", escape(name), escape(strings.ToLower(short[:1])+short[1:]))
	t.section("SYNOPSIS")
	usage := cmd.UseLine()
	if !cmd.Runnable() {
		usage = cmd.CommandPath() + " COMMAND"
	}
	command, rest := cmd.CommandPath(), strings.TrimPrefix(usage, cmd.CommandPath())
	fmt.Fprintf(t, "\\fB%s\\fP%s\n", escape(command), escape(rest))
	t.section("DESCRIPTION")
	description := cmd.Long
	if description == "" {
		description = cmd.Short + "."
	}
	t.paragraphs(description)
	t.commands(cmd)
	t.flags("OPTIONS", cmd.NonInheritedFlags())
	t.flags("OPTIONS OF ALL ITS COMMANDS", cmd.InheritedFlags())
	if cmd.Example != "" {
		t.section("EXAMPLES")
		t.WriteString(".nf\n")
		for line := range strings.SplitSeq(cmd.Example, "\n") {
			t.line(line)
		}
		t.WriteString(".fi\n")
	}
	t.seeAlso(cmd)
	return t.String()
}

// visible returns the subcommands that have manual pages.
func visible(cmd *cobra.Command) []*cobra.Command {
	return slices.DeleteFunc(slices.Clone(cmd.Commands()), func(c *cobra.Command) bool { return c.Hidden || c.Name() == "help" })
}

func (t *troff) commands(cmd *cobra.Command) {
	list := visible(cmd)
	if len(list) == 0 {
		return
	}
	t.section("COMMANDS")
	for _, sub := range list {
		fmt.Fprintf(t, ".TP\n\\fB%s\\fP(1)\n", escape(manualName(sub)))
		t.line(sub.Short + ".")
	}
}

func (t *troff) flags(section string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	t.section(section)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		t.WriteString(".TP\n")
		if f.Shorthand != "" {
			fmt.Fprintf(t, "\\fB\\-%s\\fP, ", f.Shorthand)
		}
		fmt.Fprintf(t, "\\fB\\-\\-%s\\fP", escape(f.Name))
		if value != "" {
			fmt.Fprintf(t, " \\fI%s\\fP", escape(value))
		}
		t.WriteString("\n")
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" && f.DefValue != "0" && !strings.Contains(usage, "default") {
			usage += fmt.Sprintf(" (default %s)", f.DefValue)
		}
		t.line(usage)
	})
}

func (t *troff) seeAlso(cmd *cobra.Command) {
	var names []string
	if cmd.HasParent() {
		names = append(names, manualName(cmd.Parent()))
		for _, sibling := range visible(cmd.Parent()) {
			if sibling != cmd {
				names = append(names, manualName(sibling))
			}
		}
	}
	if len(names) == 0 {
		return
	}
	t.section("SEE ALSO")
	for i, name := range names {
		comma := ","
		if i == len(names)-1 {
			comma = ""
		}
		fmt.Fprintf(t, ".BR %s (1)%s\n", escape(name), comma)
	}
}
