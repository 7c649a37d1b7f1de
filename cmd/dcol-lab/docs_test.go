package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	block       = regexp.MustCompile("(?s)\n```[a-z]*\n(.*?)```\n")
	placeholder = regexp.MustCompile(`\[-|\[[A-Z]|[A-Z]+\|`)
)

// The commands of dcol-lab that the texts show in blocks exist, with their flags and arguments.
func TestCommandsOfTheTexts(t *testing.T) {
	examples := 0
	for _, pattern := range []string{"../../*.md", "../../docs/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range block.FindAllStringSubmatch(string(text), -1) {
				for line := range strings.Lines(b[1]) {
					line = strings.TrimPrefix(strings.TrimSpace(line), "sudo ")
					line = strings.TrimPrefix(line, "bin/")
					if !strings.HasPrefix(line, "dcol-lab ") || placeholder.MatchString(line) {
						continue
					}
					if examples++; !runs(line) {
						t.Errorf("%s: not a command: %s", filepath.Base(file), line)
					}
				}
			}
		}
	}
	if examples < 12 {
		t.Errorf("only %d examples: are the blocks still read right?", examples)
	}
}

// runs reports whether a line is a command with flags and arguments that it accepts.
func runs(line string) bool {
	line, _, _ = strings.Cut(line, " # ")
	cmd, rest, err := command().Find(strings.Fields(strings.ReplaceAll(line, "'", ""))[1:])
	if err != nil || !cmd.Runnable() || cmd.ParseFlags(rest) != nil {
		return false
	}
	return cmd.Args == nil || cmd.ValidateArgs(cmd.Flags().Args()) == nil
}
