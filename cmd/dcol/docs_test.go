package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The commands that the texts show in blocks exist, with their flags and arguments. Synopses, which have brackets, are
// checked for their flags.
func TestCommandsOfTheTexts(t *testing.T) {
	var texts []string
	for _, pattern := range []string{"../../*.md", "../../docs/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, found...)
	}
	synopses, examples := 0, 0
	for _, file := range texts {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, block := range strings.Split(string(data), "\n```") {
			if i%2 == 0 || strings.HasPrefix(block, "toml") {
				continue
			}
			for line := range strings.Lines(block) {
				line = strings.TrimPrefix(strings.TrimSpace(line), "sudo ")
				if !strings.HasPrefix(line, "dcol ") || strings.HasPrefix(line, "dcol  ") { // the latter in a table
					continue
				}
				if synopsis.MatchString(line) {
					synopses++
					checkFlags(t, file, line)
				} else if examples++; !runs(line) {
					t.Errorf("%s: not a command: %s", filepath.Base(file), line)
				}
			}
		}
	}
	if synopses < 30 || examples < 30 {
		t.Errorf("only %d synopses and %d examples: are the blocks still read right?", synopses, examples)
	}
}

// The texts that help names exist, and are installed.
func TestTextsOfHelp(t *testing.T) {
	named := 0
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		for _, text := range textName.FindAllString(cmd.Long, -1) {
			named++
			if _, err := os.Stat("../../" + text); err != nil {
				t.Errorf("%s: %v", cmd.CommandPath(), err)
			}
		}
		for _, sub := range cmd.Commands() {
			check(sub)
		}
	}
	check(command())
	if named < 5 {
		t.Errorf("only %d texts are named: is the help still read right?", named)
	}
	out := t.TempDir()
	install := exec.CommandContext(t.Context(), "make", "-C", "../..", "-s", "install", "DESTDIR="+out, "PREFIX=/usr", "DCOL=/bin/true")
	if said, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	for _, text := range []string{"README.md", "docs/configuration.md", "docs/img/page-light.png"} {
		if _, err := os.Stat(filepath.Join(out, "usr/share/doc/dcol", text)); err != nil {
			t.Error(err)
		}
	}
}

var textName = regexp.MustCompile(`docs/[a-z-]+\.md`)

// synopsis matches lines with placeholders or alternatives.
var synopsis = regexp.MustCompile(`\[-|\[[A-Z]|[A-Z]+\||\b(PORT|SERVER|FILE)\b`)

var flag = regexp.MustCompile(`--[a-z][a-z-]*`)

// checkFlags checks the flags of a synopsis.
func checkFlags(t *testing.T, file, line string) {
	t.Helper()
	before, _, _ := strings.Cut(line, " -- ")
	cmd, _, err := command().Find(strings.Fields(before)[1:])
	if err != nil {
		t.Errorf("%s: %s: %v", filepath.Base(file), line, err)
		return
	}
	for _, name := range flag.FindAllString(before, -1) {
		if cmd.Flag(name[2:]) == nil {
			t.Errorf("%s: %s has no flag %s", filepath.Base(file), cmd.CommandPath(), name)
		}
	}
}

// runs reports whether a line of a shell is a command with flags and arguments that it accepts.
func runs(line string) bool {
	for _, end := range []string{"  #", " # ", " > ", " | ", " && ", " >>"} {
		line, _, _ = strings.Cut(line, end)
	}
	words := unquote(line)
	cmd, rest, err := command().Find(words[1:])
	if err != nil || !cmd.Runnable() && len(rest) > 0 {
		return false
	}
	if cmd.DisableFlagParsing {
		return true
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return errors.Is(err, pflag.ErrHelp)
	}
	return cmd.Args == nil || cmd.ValidateArgs(cmd.Flags().Args()) == nil
}

// unquote splits a line into words as a shell does, with single and double quotes.
func unquote(line string) (words []string) {
	var word strings.Builder
	var quote rune
	open := false
	for _, r := range line + " " {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, open = r, true
		case r == ' ':
			if open {
				words = append(words, word.String())
			}
			word.Reset()
			open = false
		default:
			word.WriteRune(r)
			open = true
		}
	}
	return words
}
